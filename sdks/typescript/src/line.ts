// The two ways to a terminal: a WebSocket, and plain requests where a WebSocket could not carry the key.
import type { Deadline } from "./deadline.js";
import { ConnectionFailed, ProtocolError } from "./errors.js";
import { jsonLines } from "./lines.js";
import { Chunk } from "./output.js";
import type { Socket } from "./platform/platform.js";
import type { Transport } from "./transport.js";
import type { WireFrame, WireOutput } from "./types.js";

/** The longest message; the server takes a mebibyte. */
const PIECE = 64 << 10;

/** What a terminal tells: its bytes, or something about it. Rejects if the connection broke. */
export type LineEvent = Uint8Array | Exclude<WireFrame, WireOutput | { type: "keepalive" }>;

export interface Line {
  next(): Promise<LineEvent>;
  write(data: Uint8Array): Promise<void>;
  resize(cols: number, rows: number): Promise<void>;
  signal(signal: string): Promise<void>;
  close(): void;
}

export class SocketLine implements Line {
  readonly #socket: Socket;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  async next(): Promise<LineEvent> {
    const message = await this.#socket.receive();
    if (message === undefined) throw new ConnectionFailed("the terminal was closed without an end");
    if (typeof message !== "string") return message;
    try {
      return JSON.parse(message) as LineEvent;
    } catch {
      throw new ProtocolError(`the terminal said ${message.slice(0, 100)}`);
    }
  }

  async write(data: Uint8Array): Promise<void> {
    for (let at = 0; at < data.length; at += PIECE) await this.#socket.send(data.subarray(at, at + PIECE));
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  signal(signal: string): Promise<void> {
    return this.#socket.send(JSON.stringify({ type: "signal", signal }));
  }

  close(): void {
    this.#socket.close();
  }
}

export class RequestLine implements Line {
  readonly #transport: Transport;
  readonly #path: readonly (string | number)[];
  readonly #frames: AsyncGenerator<WireFrame>;
  readonly #deadline: Deadline;

  private constructor(
    transport: Transport,
    path: readonly (string | number)[],
    frames: AsyncGenerator<WireFrame>,
    deadline: Deadline,
  ) {
    this.#transport = transport;
    this.#path = path;
    this.#frames = frames;
    this.#deadline = deadline;
  }

  /** Attaches to a process that has a terminal. */
  static async open(transport: Transport, sandbox: string, pid: number, from: number, outer: Deadline): Promise<Line> {
    const path = ["v1", "sandboxes", sandbox, "processes", pid];
    const deadline = transport.deadline("a terminal", { signal: outer.signal }, undefined);
    const query = { from, follow: true };
    const response = await transport.open({ method: "GET", path: [...path, "output"], query, again: "never" }, deadline);
    return new RequestLine(transport, path, jsonLines<WireFrame>(response, deadline), deadline);
  }

  async next(): Promise<LineEvent> {
    for (;;) {
      const { done, value } = await this.#frames.next();
      if (done) throw new ConnectionFailed("the terminal's output ended without an end");
      if (value.type === "stdout" || value.type === "stderr") return new Chunk(value.type, value.seq, value).data;
      if (value.type !== "keepalive") return value;
    }
  }

  #post(route: string, body: { json?: unknown; body?: () => BodyInit }): Promise<void> {
    return this.#transport.done({ method: "POST", path: [...this.#path, route], ...body }, {});
  }

  write(data: Uint8Array): Promise<void> {
    return this.#post("stdin", { body: () => data as Uint8Array<ArrayBuffer> });
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#post("resize", { json: { cols, rows } });
  }

  signal(signal: string): Promise<void> {
    return this.#post("signal", { json: { signal } });
  }

  close(): void {
    this.#deadline.abort(new ConnectionFailed("the terminal was left"));
    void this.#frames.return(undefined).catch(() => undefined);
  }
}
