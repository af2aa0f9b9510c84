// A way to the daemon on which answers get lost.
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";

export class Lossy {
  /** The first lines of all requests that arrived. */
  readonly requests: string[] = [];
  /** How many answers are still to be lost. */
  losses = 0;
  readonly #server: Server;
  readonly #open = new Set<Socket>();

  private constructor(target: URL) {
    this.#server = createServer((client) => {
      const server = connect({ host: target.hostname, port: Number(target.port) });
      for (const socket of [client, server]) {
        this.#open.add(socket);
        socket.on("close", () => this.#open.delete(socket));
        socket.on("error", () => socket.destroy());
      }
      client.on("data", (data: Buffer) => {
        for (const [, line] of data.toString("latin1").matchAll(/(?:^|\r\n)((?:GET|POST|PUT|DELETE|PATCH) [^ ]+) HTTP/g)) {
          this.requests.push(line ?? "");
        }
        server.write(data);
      });
      server.on("data", (data: Buffer) => {
        if (this.losses > 0) {
          this.losses--;
          client.destroy();
          server.destroy();
        } else client.write(data);
      });
      client.on("close", () => server.destroy());
      server.on("close", () => client.destroy());
    });
  }

  static async start(target: string): Promise<Lossy> {
    const proxy = new Lossy(new URL(target));
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#open) socket.destroy();
    await closed;
  }
}
