// A WebSocket client on a plain TCP or TLS connection.
//
// The one that comes with the platforms hides why a handshake was refused, takes in messages whether anybody reads them or
// not, cannot carry a key everywhere, and is missing in Node 20. The protocol is small.
import { createHash, randomBytes } from "node:crypto";
import * as net from "node:net";
import * as tls from "node:tls";
import { ConnectionFailed, ProtocolError } from "../errors.js";
import { Refused, type Socket } from "./platform.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/** How much is taken in that nobody has read yet. */
const UNREAD = 256 << 10;
/** The longest message. */
const LONGEST = 16 << 20;
/** The server asks every 20 s whether we are there; after three of them it is not there itself. */
const SILENCE = 70_000;
/** How long the other side may take to say goodbye. */
const GOODBYE = 2000;

const enum Kind {
  Continued = 0,
  Text = 1,
  Binary = 2,
  Close = 8,
  Ping = 9,
  Pong = 10,
}

/** One frame to the server: these are masked. */
function frame(kind: Kind, payload: Uint8Array): Buffer {
  const length = payload.length;
  const extra = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const out = Buffer.allocUnsafe(6 + extra + length);
  out[0] = 0x80 | kind;
  if (extra === 0) out[1] = 0x80 | length;
  else if (extra === 2) {
    out[1] = 0x80 | 126;
    out.writeUInt16BE(length, 2);
  } else {
    out[1] = 0x80 | 127;
    out.writeBigUInt64BE(BigInt(length), 2);
  }
  const mask = randomBytes(4);
  const at = 2 + extra;
  out.set(mask, at);
  for (let i = 0; i < length; i++) out[at + 4 + i] = (payload[i] ?? 0) ^ (mask[i & 3] ?? 0);
  return out;
}

class Connection implements Socket {
  readonly #socket: net.Socket;
  #buffer: Buffer;
  readonly #messages: (Uint8Array | string)[] = [];
  #unread = 0;
  #parts: Buffer[] = [];
  #partsKind: Kind = Kind.Binary;
  #wake: (() => void) | undefined;
  #end: "open" | "closed" | Error = "open";

  constructor(socket: net.Socket, first: Buffer) {
    this.#socket = socket;
    this.#buffer = first;
    socket.setTimeout(SILENCE, () => {
      // One that nobody reads from is silent for that reason.
      if (!socket.isPaused()) this.#over(new ConnectionFailed(`nothing came for ${SILENCE} ms`));
    });
    socket.on("data", (data: Buffer) => {
      this.#buffer = this.#buffer.length === 0 ? data : Buffer.concat([this.#buffer, data]);
      this.#parse();
    });
    socket.on("error", (error) => this.#over(new ConnectionFailed(`the connection broke: ${error.message}`)));
    socket.on("end", () => this.#over(new ConnectionFailed("the connection was closed without a word")));
    socket.on("close", () => this.#over(new ConnectionFailed("the connection broke")));
    this.#parse();
    socket.resume();
  }

  #over(end: "closed" | Error): void {
    if (this.#end !== "open") return;
    this.#end = end;
    if (end !== "closed") this.#socket.destroy();
    this.#wake?.();
  }

  #parse(): void {
    while (this.#end === "open") {
      const [first, second] = this.#buffer;
      if (first === undefined || second === undefined) return;
      let length = second & 0x7f;
      let at = 2;
      if (length === 126) {
        if (this.#buffer.length < 4) return;
        length = this.#buffer.readUInt16BE(2);
        at = 4;
      } else if (length === 127) {
        if (this.#buffer.length < 10) return;
        length = Number(this.#buffer.readBigUInt64BE(2));
        at = 10;
      }
      if ((second & 0x80) !== 0 || (first & 0x70) !== 0 || length > LONGEST) {
        return this.#over(new ProtocolError("the server sent a frame that is none"));
      }
      if (this.#buffer.length < at + length) return;
      const payload = this.#buffer.subarray(at, at + length);
      this.#buffer = this.#buffer.subarray(at + length);
      this.#take((first & 0x80) !== 0, first & 0x0f, payload);
    }
  }

  #take(last: boolean, kind: Kind, payload: Buffer): void {
    switch (kind) {
      case Kind.Ping:
        this.#socket.write(frame(Kind.Pong, payload));
        return;
      case Kind.Pong:
        return;
      case Kind.Close: {
        const code = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
        this.#socket.end(frame(Kind.Close, payload.subarray(0, 2)));
        const text = payload.subarray(2).toString();
        return this.#over(code === 1000 ? "closed" : new ConnectionFailed(`the server closed with ${code} ${text}`));
      }
      case Kind.Text:
      case Kind.Binary:
        this.#partsKind = kind;
        break;
      case Kind.Continued:
        break;
      default:
        return this.#over(new ProtocolError(`the server sent a frame of kind ${kind as number}`));
    }
    this.#parts.push(payload);
    if (!last) return;
    const whole = this.#parts.length === 1 ? payload : Buffer.concat(this.#parts);
    this.#parts = [];
    // Copied: the buffer that it lies in is much larger.
    this.#messages.push(this.#partsKind === Kind.Text ? whole.toString() : new Uint8Array(whole));
    this.#unread += whole.length;
    if (this.#unread > UNREAD) this.#socket.pause();
    this.#wake?.();
  }

  async receive(): Promise<Uint8Array | string | undefined> {
    for (;;) {
      const message = this.#messages.shift();
      if (message !== undefined) {
        this.#unread -= message.length;
        if (this.#socket.isPaused() && this.#unread <= UNREAD / 2) this.#socket.resume();
        return message;
      }
      if (this.#end === "closed") return undefined;
      if (this.#end !== "open") throw this.#end;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  send(message: Uint8Array | string): Promise<void> {
    const text = typeof message === "string";
    const bytes = text ? Buffer.from(message) : message;
    return new Promise((resolve, reject) => {
      if (this.#end !== "open") return reject(this.#end === "closed" ? new ConnectionFailed("it is closed") : this.#end);
      this.#socket.write(frame(text ? Kind.Text : Kind.Binary, bytes), (error) => {
        if (error) reject(new ConnectionFailed(`the connection broke: ${error.message}`));
        else resolve();
      });
    });
  }

  close(): void {
    if (this.#end === "open") {
      this.#end = "closed";
      this.#wake?.();
      this.#socket.end(frame(Kind.Close, Buffer.from([0x03, 0xe8])));
    }
    this.#socket.resume();
    // What is still on its way is of no interest any more, but closing over it would reset the connection.
    const timer = setTimeout(() => this.#socket.destroy(), GOODBYE);
    timer.unref?.();
    this.#socket.once("close", () => clearTimeout(timer));
    this.#socket.once("end", () => this.#socket.destroy());
    this.#socket.unref();
  }
}

/** The head of an answer. */
function readHead(text: string): { status: number; headers: Map<string, string> } {
  const [first = "", ...rest] = text.split("\r\n");
  const headers = new Map<string, string>();
  for (const line of rest) {
    const colon = line.indexOf(":");
    if (colon > 0) headers.set(line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim());
  }
  return { status: Number(/^HTTP\/1\.[01] ([0-9]{3})/.exec(first)?.[1] ?? 0), headers };
}

function dial(url: URL): net.Socket {
  const secure = url.protocol === "wss:" || url.protocol === "https:";
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  const port = Number(url.port) || (secure ? 443 : 80);
  if (!secure) return net.connect({ host, port });
  const named = net.isIP(host) === 0 ? { servername: host } : {};
  return tls.connect({ host, port, ALPNProtocols: ["http/1.1"], ...named });
}

/** Opens one. Rejects with `Refused` if the server answers with something else. */
export function connect(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<Socket> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const socket = dial(url);
    const key = randomBytes(16).toString("base64");
    let got = Buffer.alloc(0);
    const settle = (): void => {
      signal.removeEventListener("abort", abort);
      for (const event of ["data", "error", "close", "connect", "secureConnect"]) socket.removeAllListeners(event);
    };
    const fail = (error: unknown): void => {
      settle();
      socket.on("error", () => undefined);
      socket.destroy();
      reject(error);
    };
    const abort = (): void => fail(signal.reason);
    const broken = (error?: Error): void =>
      fail(new ConnectionFailed(`cannot reach ${url.host}: ${error?.message ?? "it hung up"}`, { cause: error }));
    signal.addEventListener("abort", abort, { once: true });
    socket.on("error", broken);
    socket.on("close", () => {
      // An answer without a length ends here.
      const end = got.indexOf("\r\n\r\n");
      if (end < 0) return broken();
      fail(new Refused(readHead(got.subarray(0, end).toString("latin1")).status, got.subarray(end + 4).toString()));
    });
    socket.once(socket instanceof tls.TLSSocket ? "secureConnect" : "connect", () => {
      socket.setNoDelay(true);
      const lines = [
        `GET ${url.pathname}${url.search} HTTP/1.1`,
        `Host: ${url.host}`,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        `Sec-WebSocket-Key: ${key}`,
        ...Object.entries(headers).map(([name, value]) => `${name}: ${value.replace(/[\r\n]/g, "")}`),
      ];
      socket.write(`${lines.join("\r\n")}\r\n\r\n`);
    });
    socket.on("data", (data: Buffer) => {
      got = Buffer.concat([got, data]);
      const end = got.indexOf("\r\n\r\n");
      if (end < 0) return;
      const { status, headers: answer } = readHead(got.subarray(0, end).toString("latin1"));
      const rest = got.subarray(end + 4);
      if (status !== 101) {
        const length = Number(answer.get("content-length") ?? Number.NaN);
        if (rest.length >= length) fail(new Refused(status, rest.subarray(0, length).toString()));
        return;
      }
      if (answer.get("sec-websocket-accept") !== createHash("sha1").update(key + GUID).digest("base64")) {
        return fail(new ProtocolError("the handshake's answer is for another request"));
      }
      socket.pause();
      settle();
      resolve(new Connection(socket, rest));
    });
  });
}
