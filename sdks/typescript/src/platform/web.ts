// Browsers and their workers: no files, no listeners, and WebSockets without headers.
import { ConnectionFailed, WakefulError } from "../errors.js";
import type { LocalListener, LocalSink, LocalSource, Platform, Socket } from "./platform.js";

export { Refused } from "./platform.js";

/** How much may lie between us and the network before a sender waits. */
const BUFFERED = 1 << 20;

class WebSocketStream implements Socket {
  readonly #socket: WebSocket;
  readonly #messages: (Uint8Array | string)[] = [];
  #wake: (() => void) | undefined;
  #end: "open" | "closed" | "broken" = "open";

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.addEventListener("message", ({ data }) => {
      this.#messages.push(typeof data === "string" ? data : new Uint8Array(data as ArrayBuffer));
      this.#wake?.();
    });
    socket.addEventListener("close", (event) => {
      this.#end = event.wasClean && event.code === 1000 ? "closed" : "broken";
      this.#wake?.();
    });
  }

  async receive(): Promise<Uint8Array | string | undefined> {
    for (;;) {
      const message = this.#messages.shift();
      if (message !== undefined) return message;
      if (this.#end === "closed") return undefined;
      if (this.#end === "broken") throw new ConnectionFailed("the connection broke");
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async send(message: Uint8Array | string): Promise<void> {
    // Browsers tell how much is waiting, and not when it is gone.
    while (this.#end === "open" && this.#socket.bufferedAmount > BUFFERED) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    if (this.#end !== "open") throw new ConnectionFailed("the connection is closed");
    this.#socket.send(message as string | Uint8Array<ArrayBuffer>);
  }

  close(): void {
    this.#socket.close(1000);
  }
}

function unavailable(what: string): never {
  throw new WakefulError(`${what} cannot be had in a browser`);
}

export const platform: Platform = {
  headers: {},
  socketHeaders: false,
  streamingBodies: false,
  env: () => undefined,

  connect(url, _headers, signal): Promise<Socket> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const socket = new WebSocket(url);
      socket.binaryType = "arraybuffer";
      const stream = new WebSocketStream(socket);
      const settled = (): void => {
        signal.removeEventListener("abort", abort);
        socket.removeEventListener("close", failed);
      };
      const abort = (): void => {
        settled();
        socket.close();
        reject(signal.reason);
      };
      const failed = (): void => {
        settled();
        // Why a handshake was refused is hidden from pages.
        reject(new ConnectionFailed(`no WebSocket to ${url.host}: refused, or not reachable`));
      };
      signal.addEventListener("abort", abort, { once: true });
      socket.addEventListener("close", failed);
      socket.addEventListener("open", () => {
        settled();
        resolve(stream);
      });
    });
  },

  async source(): Promise<LocalSource> {
    return unavailable("local paths");
  },
  async sink(): Promise<LocalSink> {
    return unavailable("local paths");
  },
  async listen(): Promise<LocalListener> {
    return unavailable("a local port");
  },
};
