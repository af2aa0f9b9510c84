// A web server as an application has one: it serves a page, and passes the page's calls on to the daemon.
import { createServer, request, type IncomingMessage, type Server } from "node:http";
import { connect, type AddressInfo, type Socket } from "node:net";

export class Origin {
  readonly #server: Server;
  readonly #open = new Set<Socket>();
  readonly result: Promise<string>;

  private constructor(daemon: URL, pages: Record<string, { type: string; body: string }>) {
    let tell: (result: string) => void = () => undefined;
    this.result = new Promise((resolve) => (tell = resolve));
    this.#server = createServer((incoming, answer) => {
      const page = pages[incoming.url ?? ""];
      if (page) return answer.setHeader("content-type", page.type).end(page.body);
      if (incoming.url === "/result") {
        let body = "";
        incoming.on("data", (piece: Buffer) => (body += piece.toString()));
        return incoming.on("end", () => {
          answer.end();
          tell(body);
        });
      }
      if (!incoming.url?.startsWith("/v1/")) return answer.writeHead(404).end();
      const options = { hostname: daemon.hostname, port: daemon.port, path: incoming.url, method: incoming.method };
      const call = request({ ...options, headers: headers(incoming, daemon) }, (reply) => {
        answer.writeHead(reply.statusCode ?? 502, reply.headers);
        reply.pipe(answer);
      });
      call.on("error", () => answer.destroy());
      answer.on("close", () => call.destroy());
      return incoming.pipe(call);
    });
    this.#server.on("upgrade", (incoming: IncomingMessage, socket: Socket, first: Buffer) => {
      const upstream = connect({ host: daemon.hostname, port: Number(daemon.port) });
      for (const side of [socket, upstream]) {
        this.#open.add(side);
        side.on("error", () => side.destroy());
        side.on("close", () => this.#open.delete(side));
      }
      const lines = Object.entries(headers(incoming, daemon)).map(([name, value]) => `${name}: ${String(value)}`);
      upstream.write(`GET ${incoming.url} HTTP/1.1\r\n${lines.join("\r\n")}\r\n\r\n`);
      upstream.write(first);
      socket.pipe(upstream).pipe(socket);
    });
  }

  static async start(daemon: string, pages: Record<string, { type: string; body: string }>): Promise<Origin> {
    const origin = new Origin(new URL(daemon), pages);
    await new Promise<void>((resolve) => origin.#server.listen(0, "127.0.0.1", resolve));
    return origin;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    for (const socket of this.#open) socket.destroy();
    await closed;
  }
}

/** As they came, but for where they come from and go to. */
function headers(incoming: IncomingMessage, daemon: URL): Record<string, string | string[]> {
  const { origin: _origin, referer: _referer, ...rest } = incoming.headers;
  return { ...(rest as Record<string, string | string[]>), host: daemon.host };
}
