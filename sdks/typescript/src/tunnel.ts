// A TCP connection to a port inside, over a WebSocket. Each direction ends by itself.
import { ConnectionFailed, SuspendedDuringExec, streamError } from "./errors.js";
import type { Socket } from "./platform/platform.js";

/** The longest message; the server takes a mebibyte. */
const PIECE = 64 << 10;
const EOF = JSON.stringify({ type: "eof" });

type Told = { type: "eof" } | { type: "suspended" } | { type: "error"; code: string; detail: string };

/** Bytes both ways. Closing `writable` ends our direction only. */
export class Tunnel implements AsyncDisposable {
  /** What the service sends; it ends when the service ends its side. */
  readonly readable: ReadableStream<Uint8Array>;
  /** What the service gets. */
  readonly writable: WritableStream<Uint8Array>;
  readonly #socket: Socket;
  readonly #forget: () => void;
  #readEnded = false;
  #writeEnded = false;

  /** @internal */
  constructor(socket: Socket, sandbox: string, onClose: (close: () => void) => () => void) {
    this.#socket = socket;
    this.#forget = onClose(() => socket.close());
    this.readable = new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          for (;;) {
            const message = await socket.receive();
            if (message === undefined) throw new ConnectionFailed("the tunnel was closed");
            if (typeof message !== "string") return controller.enqueue(message);
            const told = JSON.parse(message) as Told;
            if (told.type === "error") throw streamError(told);
            if (told.type === "suspended") {
              const detail = `${sandbox} was suspended: its connections from outside are gone`;
              throw new SuspendedDuringExec({ status: 409, code: "suspended_during_exec", detail });
            }
            if (told.type === "eof") {
              this.#readEnded = true;
              controller.close();
              this.#ended();
              return;
            }
          }
        },
        cancel: () => this.close(),
      },
      { highWaterMark: 0 },
    );
    this.writable = new WritableStream<Uint8Array>({
      write: async (data) => {
        for (let at = 0; at < data.length; at += PIECE) await socket.send(data.subarray(at, at + PIECE));
      },
      close: async () => {
        await socket.send(EOF);
        this.#writeEnded = true;
        this.#ended();
      },
      abort: () => this.close(),
    });
  }

  #ended(): void {
    if (this.#readEnded && this.#writeEnded) this.close();
  }

  /** Ends both directions at once. */
  close(): void {
    this.#forget();
    this.#socket.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
