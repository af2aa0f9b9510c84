// Ports of a sandbox: previews, tunnels, and local ports that lead into it.
import { platform } from "#platform";
import type { LocalConnection, LocalListener } from "./platform/platform.js";
import { CALL_MS, type Transport } from "./transport.js";
import { Tunnel } from "./tunnel.js";
import type { CallOptions, Port, PortSession } from "./types.js";

export interface ForwardOptions extends CallOptions {
  /** The local port; any free one if absent. */
  localPort?: number | undefined;
  /** Where to listen; `127.0.0.1` if absent. */
  host?: string | undefined;
  /** Gets what went wrong with a connection, as when nothing listens inside. */
  onError?: ((error: unknown) => void) | undefined;
}

/** A local port that leads into a sandbox, until it is closed. */
export class Forward implements AsyncDisposable {
  readonly #listener: LocalListener;
  readonly #tunnels: Set<Tunnel>;

  /** @internal */
  constructor(listener: LocalListener, tunnels: Set<Tunnel>) {
    this.#listener = listener;
    this.#tunnels = tunnels;
  }

  get host(): string {
    return this.#listener.host;
  }

  get localPort(): number {
    return this.#listener.port;
  }

  /** `host:port`, as it is written in an address. */
  get address(): string {
    return this.host.includes(":") ? `[${this.host}]:${this.localPort}` : `${this.host}:${this.localPort}`;
  }

  /** Listens no more, and cuts what is open. */
  async close(): Promise<void> {
    for (const tunnel of this.#tunnels) tunnel.close();
    await this.#listener.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The ports of a sandbox. */
export class Ports {
  readonly #transport: Transport;
  readonly #sandbox: string;

  /** @internal */
  constructor(transport: Transport, sandbox: string) {
    this.#transport = transport;
    this.#sandbox = sandbox;
  }

  #path(...rest: (string | number)[]): (string | number)[] {
    return ["v1", "sandboxes", this.#sandbox, "ports", ...rest];
  }

  /** Those that something was said about; all others are private. */
  async list(options: CallOptions = {}): Promise<Port[]> {
    const request = { method: "GET", path: this.#path() } as const;
    return (await this.#transport.json<{ ports: Port[] }>(request, options)).ports;
  }

  /** A port, with the address of its preview. */
  async get(port: number, options: CallOptions = {}): Promise<Port> {
    return this.#transport.json<Port>({ method: "GET", path: this.#path(port) }, options);
  }

  /** Says who may see its preview: everybody, or only who has a key. */
  async open(port: number, options: CallOptions & { public?: boolean | undefined } = {}): Promise<Port> {
    const json = { public: options.public ?? true };
    return this.#transport.json<Port>({ method: "PUT", path: this.#path(port), json }, options);
  }

  /** Forgets what was said: it is private again. */
  async close(port: number, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: this.#path(port) }, options);
  }

  /** An address that lets a browser in to a private preview, once. */
  async session(port: number, options: CallOptions = {}): Promise<PortSession> {
    return this.#transport.json<PortSession>({ method: "POST", path: this.#path(port, "session") }, options);
  }

  /** A connection to what listens on a port inside, also on its loopback only. */
  async connect(port: number, options: CallOptions = {}): Promise<Tunnel> {
    const deadline = this.#transport.deadline(`connecting to port ${port}`, options, CALL_MS);
    try {
      const socket = await this.#transport.socket(this.#path(port, "tcp"), {}, deadline);
      return new Tunnel(socket, this.#sandbox, (close) => this.#transport.onClose(close));
    } finally {
      deadline.close();
    }
  }

  /** Listens on this machine; what connects there is connected to the port inside. Not in browsers. */
  async forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
    const tunnels = new Set<Tunnel>();
    const serve = async (connection: LocalConnection): Promise<void> => {
      let tunnel: Tunnel | undefined;
      try {
        tunnel = await this.connect(port, { signal: options.signal });
        tunnels.add(tunnel);
        const up = connection.readable.pipeTo(tunnel.writable);
        const down = tunnel.readable.pipeTo(connection.writable);
        await Promise.all([up, down]);
      } catch (error) {
        options.onError?.(error);
        connection.destroy();
        tunnel?.close();
      } finally {
        if (tunnel) tunnels.delete(tunnel);
      }
    };
    const accept = (connection: LocalConnection): void => void serve(connection);
    const listener = await platform.listen(options.host ?? "127.0.0.1", options.localPort ?? 0, accept);
    const forward = new Forward(listener, tunnels);
    if (options.signal?.aborted) {
      await forward.close();
      options.signal.throwIfAborted();
    }
    options.signal?.addEventListener("abort", () => void forward.close(), { once: true });
    return forward;
  }
}
