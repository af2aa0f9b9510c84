// Running a command: waiting for its end, or reading what it writes as it does.
import { untilAwake } from "./awake.js";
import { milliseconds, wireDuration } from "./duration.js";
import { CommandFailed, ConnectionFailed, SuspendedDuringExec } from "./errors.js";
import { jsonLines } from "./lines.js";
import { OutputStream, type Exit, type StreamOptions } from "./output.js";
import type { Transport } from "./transport.js";
import type { Command, Duration, Wire, WireFrame } from "./types.js";

/** The longest that a server lets a command take, unless it is configured otherwise. */
const LONGEST_MS = 300_000;
/** What a wake and the way there may take on top. */
const MARGIN_MS = 90_000;
/** Commands that may be silent for longer than this are listened to: many a proxy gives up on them otherwise. */
const QUIET_MS = 200_000;
/** What is kept of each output, as the server does it. */
const KEPT = 8 << 20;

/** What every kind of command takes. */
export interface CommandOptions extends StreamOptions {
  /** How long it may run; then it is killed with all of its children. */
  timeout?: Duration | undefined;
  /** Where it runs, if not in the template's directory. */
  workdir?: string | undefined;
  /** Variables over the sandbox's. */
  env?: Readonly<Record<string, string>> | undefined;
  /** As whom, if not as the template's user. */
  user?: string | undefined;
  /** What it reads from its standard input. */
  stdin?: string | undefined;
}

export interface ExecOptions extends CommandOptions {
  /** Reject with `CommandFailed` if it does not end with 0. */
  check?: boolean | undefined;
  /** Gets output as it comes. */
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
}

/** How a command ended. */
export interface ExecResult {
  readonly pid: number;
  /** 128 and the signal, if it was killed. */
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
  /** Measured in the guest, without a wake. */
  readonly durationMs: number;
  /** It was killed because its time was up. */
  readonly timedOut: boolean;
  readonly signal: number | null;
  /** There was more output than is kept. */
  readonly stdoutTruncated: boolean;
  readonly stderrTruncated: boolean;
}

export function commandBody(command: Command, options: CommandOptions): Wire["ExecuteRequest"] {
  return {
    command: typeof command === "string" ? command : [...command],
    timeout: wireDuration(options.timeout) ?? null,
    workdir: options.workdir ?? null,
    env: { ...options.env },
    user: options.user ?? null,
    stdin: options.stdin ?? null,
  };
}

/** How long the whole call may take if nothing was said of it; `undefined` for a command without a limit. */
function patience(options: CommandOptions): number | undefined {
  const limit = options.timeout === undefined ? LONGEST_MS : milliseconds(options.timeout);
  return limit === 0 ? undefined : (limit ?? LONGEST_MS) + MARGIN_MS;
}

/** Starts a command; resolves when it runs. */
export async function stream(
  transport: Transport,
  id: string,
  command: Command,
  options: CommandOptions,
): Promise<OutputStream> {
  // Asleep, the guest's clock stands still: a limit of the command is none of the stream.
  const deadline = transport.deadline("the stream of a command", options, undefined);
  const place = { transport, id, deadline, onSuspend: options.onSuspend ?? "wait", follow: true };
  try {
    const path = ["v1", "sandboxes", id, "execute"];
    const json = commandBody(command, options);
    const response = await transport.open({ method: "POST", path, query: { stream: true }, json }, deadline);
    const frames = jsonLines<WireFrame>(response, deadline);
    // The first line names the process: from here on it can be found again.
    const { done, value } = await frames.next();
    if (done || value.type !== "start") throw new ConnectionFailed("the stream ended before the command was named");
    return new OutputStream(place, value.pid, value.seq + 1, frames);
  } catch (error) {
    deadline.close();
    throw error;
  }
}

/** Gathers text up to a limit in bytes; a character counts as one here, which errs on the side of keeping more. */
class Gathered {
  #parts: string[] = [];
  #length = 0;
  truncated = false;

  add(text: string): void {
    const room = KEPT - this.#length;
    if (text.length > room) this.truncated = true;
    const kept = text.length > room ? text.slice(0, room) : text;
    this.#length += kept.length;
    if (kept !== "") this.#parts.push(kept);
  }

  get text(): string {
    return this.#parts.join("");
  }
}

async function gather(output: OutputStream, options: ExecOptions): Promise<ExecResult> {
  const [stdout, stderr] = [new Gathered(), new Gathered()];
  let end: Exit | undefined;
  for await (const frame of output) {
    if (frame.type === "stdout") {
      stdout.add(frame.text);
      options.onStdout?.(frame.text);
    } else if (frame.type === "stderr") {
      stderr.add(frame.text);
      options.onStderr?.(frame.text);
    } else if (frame.type === "gap") {
      // Which of the two it was, nobody knows any more.
      stdout.truncated = stderr.truncated = true;
    } else if (frame.type === "exit") {
      end = frame;
    }
  }
  if (!end) throw new ConnectionFailed("the stream ended before the command did");
  return {
    pid: output.pid,
    exitCode: end.exitCode,
    stdout: stdout.text,
    stderr: stderr.text,
    durationMs: end.durationMs,
    timedOut: end.timedOut,
    signal: end.signal,
    stdoutTruncated: stdout.truncated,
    stderrTruncated: stderr.truncated,
  };
}

async function waitFor(
  transport: Transport,
  id: string,
  command: Command,
  options: ExecOptions,
  timeoutMs: number,
): Promise<ExecResult> {
  const began = performance.now();
  try {
    const answer = await transport.json<Wire["ExecuteResponse"]>(
      { method: "POST", path: ["v1", "sandboxes", id, "execute"], json: commandBody(command, options) },
      options,
      timeoutMs,
    );
    return {
      pid: answer.pid,
      exitCode: answer.exit_code,
      stdout: answer.stdout,
      stderr: answer.stderr,
      durationMs: answer.duration_ms,
      timedOut: answer.timed_out,
      signal: answer.signal,
      stdoutTruncated: answer.stdout_truncated,
      stderrTruncated: answer.stderr_truncated,
    };
  } catch (error) {
    if (!(error instanceof SuspendedDuringExec) || options.onSuspend === "raise") throw error;
    // It sleeps with its sandbox. All that it has written is in its journal.
    const rest = { ...options, timeoutMs: Math.max(0, (options.timeoutMs ?? timeoutMs) - (performance.now() - began)) };
    const deadline = transport.deadline("the rest of a command", rest, undefined);
    const place = { transport, id, deadline, onSuspend: "wait" as const, follow: true };
    try {
      await untilAwake(transport, id, deadline);
      return await gather(new OutputStream(place, error.pid, 0), options);
    } finally {
      deadline.close();
    }
  }
}

/** Runs a command to its end. */
export async function exec(
  transport: Transport,
  id: string,
  command: Command,
  options: ExecOptions,
): Promise<ExecResult> {
  const timeoutMs = patience(options);
  const long = options.timeout !== undefined && (milliseconds(options.timeout) ?? 0) > QUIET_MS;
  let result: ExecResult;
  if (timeoutMs === undefined || long || options.onStdout || options.onStderr) {
    await using output = await stream(transport, id, command, { ...options, timeoutMs: options.timeoutMs ?? timeoutMs });
    result = await gather(output, options);
  } else {
    result = await waitFor(transport, id, command, options, timeoutMs);
  }
  if (options.check && result.exitCode !== 0) throw new CommandFailed(result);
  return result;
}
