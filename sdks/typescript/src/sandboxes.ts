import { wireCreate, type CreateOptions, type ListOptions } from "./options.js";
import { Pages } from "./pages.js";
import { Sandbox } from "./sandbox.js";
import { SLOW_MS, type Transport } from "./transport.js";
import type { CallOptions, SandboxInfo } from "./types.js";

/** The sandboxes of a server. */
export class Sandboxes {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes one; it runs when this resolves. */
  async create(options: CreateOptions): Promise<Sandbox> {
    const request = { method: "POST", path: ["v1", "sandboxes"], json: wireCreate(options), idempotent: true } as const;
    return new Sandbox(this.#transport, await this.#transport.json<SandboxInfo>(request, options, SLOW_MS));
  }

  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    const request = { method: "GET", path: ["v1", "sandboxes", id] } as const;
    return new Sandbox(this.#transport, await this.#transport.json<SandboxInfo>(request, options));
  }

  /** All that fit, newest first. Destroyed ones only if they are asked for by `status`. */
  list(options: ListOptions = {}): Pages<Sandbox> {
    const labels = Object.entries(options.metadata ?? {}).map(([name, value]) => [`metadata.${name}`, value]);
    const query = { status: options.status, mode: options.mode, template: options.template, limit: options.pageSize };
    return new Pages(async (cursor) => {
      const page = await this.#transport.json<{ sandboxes: SandboxInfo[]; next_cursor: string | null }>(
        { method: "GET", path: ["v1", "sandboxes"], query: { ...query, cursor, ...Object.fromEntries(labels) } },
        options,
      );
      const items = page.sandboxes.map((info) => new Sandbox(this.#transport, info));
      return { items, next: page.next_cursor ?? undefined };
    });
  }
}
