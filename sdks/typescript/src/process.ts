// Processes that nobody waits for.
import { commandBody, type CommandOptions } from "./exec.js";
import { DeadlineExceeded } from "./errors.js";
import { OutputStream, type Exit, type StreamOptions } from "./output.js";
import { oneShot, requestBody } from "./data.js";
import { TRANSFER_MS, type Transport } from "./transport.js";
import type { CallOptions, Command, Data, ProcessInfo } from "./types.js";

export interface ProcessOptions extends Omit<CommandOptions, "onSuspend"> {
  /** Gives it a terminal of this size. */
  pty?: { cols: number; rows: number } | undefined;
  /** The sandbox stays awake until it ends. */
  keepAwake?: boolean | undefined;
}

export interface OutputOptions extends StreamOptions {
  /** The frame to begin with; the first one that is there, if absent. */
  from?: number | undefined;
  /** Until the process ends, or only what is there; `true` if absent. */
  follow?: boolean | undefined;
}

/** A process in a sandbox, running or ended within the hour. */
export class Process {
  /** What was last known of it. */
  info: ProcessInfo;
  readonly #transport: Transport;
  readonly #sandbox: string;

  /** @internal */
  constructor(transport: Transport, sandbox: string, info: ProcessInfo) {
    this.#transport = transport;
    this.#sandbox = sandbox;
    this.info = info;
  }

  get pid(): number {
    return this.info.pid;
  }

  get running(): boolean {
    return this.info.running;
  }

  /** `null` while it runs. */
  get exitCode(): number | null {
    return this.info.exit_code;
  }

  #path(...rest: string[]): (string | number)[] {
    return ["v1", "sandboxes", this.#sandbox, "processes", this.pid, ...rest];
  }

  /** Asks for what is known of it now. */
  async refresh(options: CallOptions = {}): Promise<this> {
    this.info = await this.#transport.json<ProcessInfo>({ method: "GET", path: this.#path() }, options);
    return this;
  }

  /** What it wrote and writes. Any number of readers get the same. */
  output(options: OutputOptions = {}): OutputStream {
    const deadline = this.#transport.deadline(`the output of process ${this.pid}`, options, undefined);
    const place = {
      transport: this.#transport,
      id: this.#sandbox,
      deadline,
      onSuspend: options.onSuspend ?? ("wait" as const),
      follow: options.follow ?? true,
    };
    return new OutputStream(place, this.pid, options.from ?? 0);
  }

  /** Writes to its standard input; with `eof` that is then at its end. */
  async writeStdin(data: Data, options: CallOptions & { eof?: boolean | undefined } = {}): Promise<void> {
    const { body, headers } = requestBody(data);
    await this.#transport.done(
      {
        method: "POST",
        path: this.#path("stdin"),
        query: { eof: options.eof ? true : undefined },
        body,
        headers,
        ...(oneShot(data) ? { again: "never" as const } : {}),
      },
      options,
      TRANSFER_MS,
    );
  }

  /** Ends its standard input. */
  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "POST", path: this.#path("stdin"), query: { eof: true } }, options);
  }

  /** Sends a signal, `"TERM"` or its number. */
  async signal(signal: string | number, options: CallOptions = {}): Promise<void> {
    const json = { signal: String(signal) };
    await this.#transport.done({ method: "POST", path: this.#path("signal"), json }, options);
  }

  /** Ends it for good. */
  async kill(options: CallOptions = {}): Promise<void> {
    await this.signal("KILL", options);
  }

  /** Changes the size of its terminal. */
  async resize(size: { cols: number; rows: number }, options: CallOptions = {}): Promise<void> {
    const json = { cols: size.cols, rows: size.rows };
    await this.#transport.done({ method: "POST", path: this.#path("resize"), json }, options);
  }

  /** Waits for its end: ten minutes, unless something else is said. */
  async wait(options: StreamOptions = {}): Promise<Exit> {
    const timeoutMs = options.timeoutMs ?? TRANSFER_MS;
    const began = performance.now();
    await this.refresh({ ...options, timeoutMs });
    const left = timeoutMs - (performance.now() - began);
    if (left <= 0) throw new DeadlineExceeded(`process ${this.pid}`, timeoutMs);
    await using output = this.output({ ...options, timeoutMs: left, from: Math.max(1, this.info.last_seq) });
    const exit = await output.wait();
    this.info = { ...this.info, running: false, exit_code: exit.exitCode };
    return exit;
  }
}

/** The processes of a sandbox. */
export class Processes {
  readonly #transport: Transport;
  readonly #sandbox: string;

  /** @internal */
  constructor(transport: Transport, sandbox: string) {
    this.#transport = transport;
    this.#sandbox = sandbox;
  }

  #path(...rest: number[]): (string | number)[] {
    return ["v1", "sandboxes", this.#sandbox, "processes", ...rest];
  }

  /** Starts one that goes on without anybody who listens. */
  async start(command: Command, options: ProcessOptions = {}): Promise<Process> {
    const json = {
      ...commandBody(command, options),
      ...(options.pty ? { pty: { cols: options.pty.cols, rows: options.pty.rows } } : {}),
      keep_awake: options.keepAwake ?? false,
    };
    const info = await this.#transport.json<ProcessInfo>({ method: "POST", path: this.#path(), json }, options);
    return new Process(this.#transport, this.#sandbox, info);
  }

  /** Those that run, and those that ended within the hour. */
  async list(options: CallOptions = {}): Promise<Process[]> {
    const request = { method: "GET", path: this.#path() } as const;
    const answer = await this.#transport.json<{ processes: ProcessInfo[] }>(request, options);
    return answer.processes.map((info) => new Process(this.#transport, this.#sandbox, info));
  }

  async get(pid: number, options: CallOptions = {}): Promise<Process> {
    const info = await this.#transport.json<ProcessInfo>({ method: "GET", path: this.#path(pid) }, options);
    return new Process(this.#transport, this.#sandbox, info);
  }
}
