// A terminal in a sandbox.
//
// Every piece of output has a number of the journal: whoever counts them can leave and come back, after a lost connection,
// a sleep or a restart, and misses nothing.
import { untilAwake } from "./awake.js";
import { pause, type Deadline } from "./deadline.js";
import { ConnectionFailed, SuspendedDuringExec, Unavailable, WakefulError, streamError } from "./errors.js";
import { RequestLine, SocketLine, type Line } from "./line.js";
import { RECONNECT_MS, type Exit, type StreamOptions } from "./output.js";
import { Processes } from "./process.js";
import { CALL_MS, TRANSFER_MS, type Transport } from "./transport.js";
import type { CallOptions, OnSuspend } from "./types.js";

export interface PtyOptions extends StreamOptions {
  /** Its size; 80 by 24 if absent. */
  cols?: number | undefined;
  rows?: number | undefined;
  /** A line for the shell; the user's own shell if absent. */
  command?: string | undefined;
  /** A process that has a terminal already, instead of a new one. */
  pid?: number | undefined;
  /** Where its output goes on; its beginning if absent. */
  from?: number | undefined;
}

/** An open terminal. Walk through it for its output; it can be walked through once. */
export class Pty implements AsyncIterable<Uint8Array>, AsyncDisposable {
  readonly pid: number;
  /** Where the output goes on for who comes back: `sandbox.pty({ pid, from: seq })`. */
  seq: number;
  /** How the process ended, once that was read. */
  exit: Exit | undefined;
  /** How much output was lost before it could be read. */
  droppedBytes = 0;
  readonly #transport: Transport;
  readonly #sandbox: string;
  readonly #deadline: Deadline;
  readonly #onSuspend: OnSuspend;
  readonly #output: AsyncGenerator<Uint8Array, void, undefined>;
  #line: Line | undefined;
  #opening: Promise<Line> | undefined;
  #writing: Promise<void> = Promise.resolve();
  #asleep = false;
  #left = false;

  private constructor(
    transport: Transport,
    sandbox: string,
    deadline: Deadline,
    onSuspend: OnSuspend,
    begun: { line: Line; pid: number; seq: number },
  ) {
    this.#transport = transport;
    this.#sandbox = sandbox;
    this.#deadline = deadline;
    this.#onSuspend = onSuspend;
    this.#line = begun.line;
    this.pid = begun.pid;
    this.seq = begun.seq;
    this.#output = this.#walk();
    deadline.signal.addEventListener("abort", () => this.#line?.close(), { once: true });
  }

  /** @internal */
  static async open(transport: Transport, sandbox: string, options: PtyOptions): Promise<Pty> {
    const deadline = transport.deadline("a terminal", options, undefined);
    try {
      const begun = await begin(transport, sandbox, options, deadline);
      return new Pty(transport, sandbox, deadline, options.onSuspend ?? "wait", begun);
    } catch (error) {
      deadline.close();
      throw error;
    }
  }

  /** The exit code, once it was read. */
  get exitCode(): number | undefined {
    return this.exit?.exitCode;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    return this.#output;
  }

  /** The next piece of output; `undefined` at the end. */
  async next(): Promise<Uint8Array | undefined> {
    const { done, value } = await this.#output.next();
    return done ? undefined : value;
  }

  /** Its sandbox was put to sleep, and this waits until it is awake. */
  get asleep(): boolean {
    return this.#asleep;
  }

  /**
   * Types. Text that is typed into a sandbox that sleeps wakes it. Nothing is typed twice; what is on its way in the very
   * moment in which the connection breaks or the sandbox is put to sleep may be lost, as nobody tells what has arrived.
   */
  write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    return this.#say((line) => line.write(bytes));
  }

  resize(size: { cols: number; rows: number }): Promise<void> {
    return this.#say((line) => line.resize(size.cols, size.rows));
  }

  /** Sends a signal to what runs in it, `"INT"` or its number. */
  signal(signal: string | number): Promise<void> {
    return this.#say((line) => line.signal(String(signal)));
  }

  /** Ends its process for good. */
  kill(): Promise<void> {
    return this.signal("KILL");
  }

  /** Reads to the end, for how its process ended: ten minutes, unless something else is said. */
  async wait(options: CallOptions = {}): Promise<Exit> {
    const deadline = this.#transport.deadline("a terminal's end", options, TRANSFER_MS);
    const over = new Promise<never>((_, reject) => {
      deadline.signal.addEventListener("abort", () => reject(deadline.signal.reason), { once: true });
    });
    over.catch(() => undefined);
    try {
      deadline.check();
      while ((await Promise.race([this.next(), over])) !== undefined);
    } finally {
      deadline.close();
    }
    if (this.exit === undefined) throw new WakefulError("the terminal was left before its process ended");
    return this.exit;
  }

  /** Leaves it. Its process goes on and can be found again by `pid` and `seq`. */
  async detach(): Promise<void> {
    this.#left = true;
    this.#line?.close();
    this.#deadline.abort(new WakefulError("the terminal was left"));
    await this.#output.return().catch(() => undefined);
  }

  /** As `detach`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.detach();
  }

  /** One thing after the other, in the order in which they were said. */
  #say(what: (line: Line) => Promise<void>): Promise<void> {
    const said = this.#writing.then(async () => {
      if (this.exit) throw new WakefulError(`process ${this.pid} has ended`);
      // The pump waits for the sandbox to be awake, and finds it so.
      if (this.#asleep) {
        const path = ["v1", "sandboxes", this.#sandbox, "wake"];
        await this.#transport.done({ method: "POST", path, query: { wait: true }, again: "lost" }, {}, CALL_MS);
      }
      const line = await this.#connected();
      try {
        await what(line);
      } catch (error) {
        if (error instanceof ConnectionFailed) this.#lost(line);
        throw error;
      }
    });
    this.#writing = said.catch(() => undefined);
    return said;
  }

  #lost(line: Line): void {
    if (this.#line !== line) return;
    line.close();
    this.#line = undefined;
  }

  /** The line, or another one in its place. */
  async #connected(): Promise<Line> {
    if (this.#left) throw new WakefulError("the terminal was left");
    if (this.#line) return this.#line;
    this.#opening ??= this.#open().finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  async #open(): Promise<Line> {
    const lostAt = performance.now();
    for (let attempt = 0; ; attempt++) {
      try {
        const place = { pid: this.pid, from: this.seq };
        const begun = await begin(this.#transport, this.#sandbox, place, this.#deadline);
        this.#line = begun.line;
        return begun.line;
      } catch (error) {
        this.#deadline.check();
        if (!(error instanceof ConnectionFailed || error instanceof Unavailable)) throw error;
        if (performance.now() - lostAt > RECONNECT_MS) throw error;
      }
      await this.#deadline.sleep(pause(attempt));
    }
  }

  async #untilAwake(): Promise<void> {
    this.#asleep = true;
    try {
      await untilAwake(this.#transport, this.#sandbox, this.#deadline);
    } finally {
      this.#asleep = false;
    }
  }

  async *#walk(): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const line = await this.#connected();
        let event;
        try {
          event = await line.next();
        } catch (error) {
          this.#deadline.check();
          if (!(error instanceof ConnectionFailed)) throw error;
          this.#lost(line);
          continue;
        }
        if (event instanceof Uint8Array) {
          this.seq++;
          yield event;
        } else if (event.type === "gap") {
          this.seq = event.seq + 1;
          this.droppedBytes += event.dropped_bytes;
        } else if (event.type === "exit") {
          const { seq, exit_code: exitCode, signal, timed_out: timedOut, duration_ms: durationMs } = event;
          this.exit = { type: "exit", seq, exitCode, signal, timedOut, durationMs };
          return;
        } else if (event.type === "suspended") {
          this.#lost(line);
          if (this.#onSuspend === "raise") {
            const detail = `${this.#sandbox} was suspended`;
            const problem = { status: 409, code: "suspended_during_exec", detail, pid: this.pid, seq: this.seq };
            throw new SuspendedDuringExec(problem);
          }
          await this.#untilAwake();
        } else if (event.type === "error") {
          const error = streamError(event);
          if (!(error instanceof Unavailable)) throw error;
          this.#lost(line);
        }
      }
    } catch (error) {
      if (!this.#left) throw error;
    } finally {
      this.#line?.close();
      this.#deadline.close();
    }
  }
}

/** Opens a line, to a new process or to one that is there, as far as its first word. */
async function begin(
  transport: Transport,
  sandbox: string,
  options: PtyOptions,
  deadline: Deadline,
): Promise<{ line: Line; pid: number; seq: number }> {
  const bounded = transport.deadline("opening a terminal", { signal: deadline.signal }, CALL_MS);
  try {
    const { cols = 80, rows = 24, command, pid, from } = options;
    if (!transport.sockets) {
      const processes = new Processes(transport, sandbox);
      const shell = command ?? 'exec "${SHELL:-/bin/sh}" -l';
      const found = pid ?? (await processes.start(shell, { pty: { cols, rows }, signal: bounded.signal })).pid;
      const line = await RequestLine.open(transport, sandbox, found, from ?? 1, deadline);
      return { line, pid: found, seq: Math.max(1, from ?? 1) };
    }
    // A terminal that exists keeps its size unless another is named.
    const size = pid === undefined ? { cols, rows } : { cols: options.cols, rows: options.rows };
    const path = ["v1", "sandboxes", sandbox, "pty"];
    const query = { ...size, command, pid, from: pid === undefined ? undefined : (from ?? 0) };
    const line = new SocketLine(await transport.socket(path, query, bounded));
    const first = await line.next();
    if (first instanceof Uint8Array || first.type !== "start") {
      line.close();
      if (!(first instanceof Uint8Array) && first.type === "error") throw streamError(first);
      throw new ConnectionFailed("the terminal did not begin with its start");
    }
    return { line, pid: first.pid, seq: first.seq + 1 };
  } finally {
    bounded.close();
  }
}
