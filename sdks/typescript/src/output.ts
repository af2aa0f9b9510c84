// What a process writes, as it comes, for as long as it takes.
//
//   connection lost (the daemon was restarted, say)   attach again at once, from where we are, with growing pauses
//   the sandbox was put to sleep                      wait until it is awake, then attach again; or reject
//   a frame that was there already                    left out
//
// Every frame has a number, so nothing is lost or told twice; what fell out of the journal is told as a gap.
import { untilAwake } from "./awake.js";
import { pause, type Deadline } from "./deadline.js";
import {
  ConnectionFailed,
  SandboxSuspended,
  SuspendedDuringExec,
  Unavailable,
  WakefulError,
  streamError,
} from "./errors.js";
import { jsonLines } from "./lines.js";
import type { Request, Transport } from "./transport.js";
import type { CallOptions, OnSuspend, WireFrame } from "./types.js";

/** How long a lost connection is sought again. */
export const RECONNECT_MS = 60_000;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** A piece of output. */
export class Chunk {
  readonly type: "stdout" | "stderr";
  readonly seq: number;
  #text: string | undefined;
  #data: Uint8Array | undefined;

  constructor(type: "stdout" | "stderr", seq: number, content: { data?: string; data_base64?: string }) {
    this.type = type;
    this.seq = seq;
    this.#text = content.data;
    if (content.data === undefined) {
      this.#data = Uint8Array.from(atob(content.data_base64 ?? ""), (character) => character.charCodeAt(0));
    }
  }

  /** Its bytes. */
  get data(): Uint8Array {
    return (this.#data ??= encoder.encode(this.#text));
  }

  /** The same as text; what is no UTF-8 is U+FFFD. */
  get text(): string {
    return (this.#text ??= decoder.decode(this.#data));
  }
}

/** Output that fell out of the journal before it was read. */
export interface Gap {
  readonly type: "gap";
  readonly seq: number;
  readonly droppedBytes: number;
}

/** How a process ended. */
export interface Exit {
  readonly type: "exit";
  readonly seq: number;
  /** 128 and the signal, if it was killed. */
  readonly exitCode: number;
  readonly signal: number | null;
  readonly timedOut: boolean;
  readonly durationMs: number;
}

export type OutputFrame = Chunk | Gap | Exit;

/** What a stream takes. */
export interface StreamOptions extends CallOptions {
  /** What happens when the sandbox is put to sleep meanwhile; `"wait"` if absent. */
  onSuspend?: OnSuspend | undefined;
}

/** Where a stream begins. */
export interface Place {
  readonly transport: Transport;
  readonly id: string;
  readonly deadline: Deadline;
  readonly onSuspend: OnSuspend;
  /** Until the process ends, or only what is there. */
  readonly follow: boolean;
}

/** The frames of a process. It can be walked through once. */
export class OutputStream implements AsyncIterable<OutputFrame>, AsyncDisposable {
  /** The process. */
  pid: number;
  /** The number of the next frame: where to attach again. */
  seq: number;
  /** How the process ended, once that was read. */
  exit: Exit | undefined;
  readonly #place: Place;
  #closed = false;
  readonly #frames: AsyncGenerator<OutputFrame, void, undefined>;

  /** @internal */
  constructor(place: Place, pid: number, seq: number, first?: AsyncGenerator<WireFrame>) {
    this.pid = pid;
    this.seq = seq;
    this.#place = place;
    this.#frames = this.#walk(first);
  }

  /** The exit code, once it was read. */
  get exitCode(): number | undefined {
    return this.exit?.exitCode;
  }

  /** The next frame; `undefined` at the end. */
  async next(): Promise<OutputFrame | undefined> {
    const { done, value } = await this.#frames.next();
    return done ? undefined : value;
  }

  [Symbol.asyncIterator](): AsyncGenerator<OutputFrame, void, undefined> {
    return this.#frames;
  }

  /** Reads to the end, for how the process ended. */
  async wait(): Promise<Exit> {
    while ((await this.next()) !== undefined);
    if (this.exit === undefined) throw new WakefulError("the stream was ended before the process was");
    return this.exit;
  }

  /** Reads no more. The process goes on. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#place.deadline.abort(new WakefulError("the stream was closed"));
    await this.#frames.return().catch(() => undefined);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #attach(): Promise<AsyncGenerator<WireFrame>> {
    const { transport, id, deadline, follow } = this.#place;
    const path = ["v1", "sandboxes", id, "processes", this.pid, "output"];
    const request: Request = { method: "GET", path, query: { from: this.seq, follow }, again: "never" };
    return jsonLines<WireFrame>(await transport.open(request, deadline), deadline);
  }

  async *#walk(first: AsyncGenerator<WireFrame> | undefined): AsyncGenerator<OutputFrame, void, undefined> {
    const { deadline } = this.#place;
    let frames = first;
    let lostAt: number | undefined;
    let attempt = 0;
    try {
      for (;;) {
        try {
          frames ??= await this.#attach();
          for await (const frame of frames) {
            lostAt = undefined;
            attempt = 0;
            const told = this.#read(frame);
            if (told) yield told;
            if (this.exit) return;
          }
          // Without an end it was cut, unless all that was asked for is what is there.
          if (!this.#place.follow) return;
          throw new ConnectionFailed("the stream ended before the process did");
        } catch (error) {
          deadline.check();
          frames = undefined;
          if (error instanceof SuspendedDuringExec || error instanceof SandboxSuspended) {
            if (this.#place.onSuspend === "raise") throw this.#suspended(error);
            await untilAwake(this.#place.transport, this.#place.id, deadline);
            continue;
          }
          if (!(error instanceof ConnectionFailed || error instanceof Unavailable)) throw error;
          lostAt ??= performance.now();
          if (performance.now() - lostAt > RECONNECT_MS) throw error;
        }
        await deadline.sleep(pause(attempt++));
      }
    } catch (error) {
      if (!this.#closed) throw error;
    } finally {
      deadline.close();
    }
  }

  #suspended(error: WakefulError): SuspendedDuringExec {
    const detail = `${this.#place.id} was suspended while process ${this.pid} ran`;
    const problem = { status: 409, code: "suspended_during_exec", detail, pid: this.pid, seq: this.seq };
    return Object.assign(new SuspendedDuringExec(problem), { cause: error });
  }

  /** What there is to tell of a frame. Rejects at what ends the stream before its process. */
  #read(frame: WireFrame): OutputFrame | undefined {
    switch (frame.type) {
      case "start":
        this.pid = frame.pid;
        return undefined;
      case "stdout":
      case "stderr":
        return this.#isNew(frame.seq) ? new Chunk(frame.type, frame.seq, frame) : undefined;
      case "gap":
        if (!this.#isNew(frame.seq)) return undefined;
        return { type: "gap", seq: frame.seq, droppedBytes: frame.dropped_bytes };
      case "exit":
        this.exit = {
          type: "exit",
          seq: frame.seq,
          exitCode: frame.exit_code,
          signal: frame.signal,
          timedOut: frame.timed_out,
          durationMs: frame.duration_ms,
        };
        return this.exit;
      case "suspended":
        throw new SuspendedDuringExec({
          status: 409,
          code: "suspended_during_exec",
          detail: `${this.#place.id} was suspended`,
          pid: frame.pid,
          seq: frame.seq,
        });
      case "error":
        throw streamError(frame);
      default:
        return undefined;
    }
  }

  #isNew(seq: number): boolean {
    if (seq < this.seq) return false;
    this.seq = seq + 1;
    return true;
  }
}
