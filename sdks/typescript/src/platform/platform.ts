// What differs between Node, Bun and Deno on one side and browsers on the other.

/** An open WebSocket. */
export interface Socket {
  /** The next message; `undefined` after an orderly close. Rejects if the connection broke. */
  receive(): Promise<Uint8Array | string | undefined>;
  /** Resolves when there is room for the next one. */
  send(message: Uint8Array | string): Promise<void>;
  close(): void;
}

/** The server's answer was not a WebSocket. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly body: string,
  ) {
    super(`the server answered ${status}`);
  }
}

/** A file or a directory of this machine. */
export interface LocalSource {
  readonly directory: boolean;
  /** Of a file. */
  readonly size: number | undefined;
  /** Its bytes; of a directory, a tar of them. */
  open(): ReadableStream<Uint8Array>;
}

/** A file of this machine that is being written. It appears when all of it is there. */
export interface LocalSink {
  write(piece: Uint8Array): Promise<void>;
  commit(): Promise<void>;
  abort(): Promise<void>;
}

/** A connection that came to a local port. */
export interface LocalConnection {
  readonly readable: ReadableStream<Uint8Array>;
  readonly writable: WritableStream<Uint8Array>;
  destroy(): void;
}

export interface LocalListener {
  readonly host: string;
  readonly port: number;
  close(): Promise<void>;
}

export interface Platform {
  /** Sent with every request. */
  readonly headers: Readonly<Record<string, string>>;
  /** WebSockets can carry a key. */
  readonly socketHeaders: boolean;
  /** A request's body can be a stream. */
  readonly streamingBodies: boolean;
  env(name: string): string | undefined;
  connect(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<Socket>;
  source(path: string): Promise<LocalSource>;
  sink(path: string): Promise<LocalSink>;
  listen(host: string, port: number, accept: (connection: LocalConnection) => void): Promise<LocalListener>;
}
