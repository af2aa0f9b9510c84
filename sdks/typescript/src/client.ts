import { platform } from "#platform";
import { Keys, Pools, Snapshots, Tenants } from "./admin.js";
import { wireDuration } from "./duration.js";
import { given } from "./options.js";
import { Sandboxes } from "./sandboxes.js";
import { upload, type Local } from "./source.js";
import { Templates } from "./templates.js";
import { SLOW_MS, Transport } from "./transport.js";
import type { CallOptions, Duration, Health, Info, Pruned, Upload, Usage } from "./types.js";

export interface ClientOptions {
  /** Where the server is: `WAKEFUL_URL`, or `http://127.0.0.1:8080`, if absent. */
  url?: string | undefined;
  /** The key: `WAKEFUL_API_KEY`, or none, if absent. */
  apiKey?: string | undefined;
  /** How long a plain call may take unless it says otherwise, in milliseconds; a minute if absent. */
  timeoutMs?: number | undefined;
  /** Sent with every request. */
  headers?: Readonly<Record<string, string>> | undefined;
  /** Used instead of the platform's. */
  fetch?: typeof fetch | undefined;
}

/** A server and how to reach it. It holds no connection of its own; closing it ends what goes on. */
export class Client implements AsyncDisposable {
  readonly url: string;
  readonly sandboxes: Sandboxes;
  readonly templates: Templates;
  readonly snapshots: Snapshots;
  readonly keys: Keys;
  readonly tenants: Tenants;
  readonly pools: Pools;
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.url = options.url ?? platform.env("WAKEFUL_URL") ?? "http://127.0.0.1:8080";
    const transport = new Transport({
      url: this.url,
      apiKey: options.apiKey ?? platform.env("WAKEFUL_API_KEY"),
      timeoutMs: options.timeoutMs,
      headers: { ...options.headers },
      fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    });
    this.#transport = transport;
    this.sandboxes = new Sandboxes(transport);
    this.templates = new Templates(transport);
    this.snapshots = new Snapshots(transport);
    this.keys = new Keys(transport);
    this.tenants = new Tenants(transport);
    this.pools = new Pools(transport);
  }

  /** Version, runtimes, sizes, limits, and who is asking. */
  info(options: CallOptions = {}): Promise<Info> {
    return this.#transport.json<Info>({ method: "GET", path: ["v1", "info"] }, options);
  }

  /** Whether the server is up. Needs no key. */
  health(options: CallOptions = {}): Promise<Health> {
    return this.#transport.json<Health>({ method: "GET", path: ["healthz"] }, options);
  }

  /** What lies on the server's disk. For admins. */
  usage(options: CallOptions = {}): Promise<Usage> {
    return this.#transport.json<Usage>({ method: "GET", path: ["v1", "df"] }, options);
  }

  /** Removes what builds keep and nobody has used for so long. For admins. */
  prune(options: CallOptions & { unused?: Duration | undefined } = {}): Promise<Pruned> {
    const json = given({ unused: wireDuration(options.unused) });
    return this.#transport.json<Pruned>({ method: "POST", path: ["v1", "prune"], json, again: "lost" }, options, SLOW_MS);
  }

  /** Sends bytes that a template is to be built from: a path of this machine (a directory as a tar), or data. */
  upload(data: Local, options: CallOptions = {}): Promise<Upload> {
    return upload(this.#transport, data, options);
  }

  /** Ends every call and stream that goes on. Sandboxes are left as they are. */
  close(): void {
    this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
