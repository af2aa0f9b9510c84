// What admins do: keys, tenants, pools.
import { given } from "./options.js";
import { Pages } from "./pages.js";
import type { Transport } from "./transport.js";
import type { CallOptions, CreatedKey, Key, Pool, Scope, Snapshot, Tenant } from "./types.js";

/** Limits of a tenant. What is left out stays as it is, `null` lifts it. */
export interface TenantLimits {
  sandboxes?: number | null | undefined;
  memoryMb?: number | null | undefined;
  diskMb?: number | null | undefined;
}

function wireLimits(limits: TenantLimits | undefined): object | undefined {
  if (limits === undefined) return undefined;
  return given({ sandboxes: limits.sandboxes, memory_mb: limits.memoryMb, disk_mb: limits.diskMb });
}

/** A list that has one page. */
function whole<T>(fetch: () => Promise<T[]>): Pages<T> {
  return new Pages(async () => ({ items: await fetch(), next: undefined }));
}

/** Keys: from the first one on, every call needs one. */
export class Keys {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes a key. It is shown this once. */
  create(
    name: string,
    options: CallOptions & { tenant?: string | undefined; scopes?: readonly Scope[] | undefined } = {},
  ): Promise<CreatedKey> {
    const json = given({ name, tenant: options.tenant, scopes: options.scopes });
    return this.#transport.json<CreatedKey>({ method: "POST", path: ["v1", "keys"], json }, options);
  }

  list(options: CallOptions & { tenant?: string | undefined } = {}): Pages<Key> {
    const request = { method: "GET", path: ["v1", "keys"], query: { tenant: options.tenant } } as const;
    return whole(async () => (await this.#transport.json<{ keys: Key[] }>(request, options)).keys);
  }

  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: ["v1", "keys", id] }, options);
  }
}

/** Tenants: who has sandboxes, and how many. */
export class Tenants {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  create(name: string, options: CallOptions & { limits?: TenantLimits | undefined } = {}): Promise<Tenant> {
    const json = given({ name, limits: wireLimits(options.limits) });
    return this.#transport.json<Tenant>({ method: "POST", path: ["v1", "tenants"], json }, options);
  }

  get(name: string, options: CallOptions = {}): Promise<Tenant> {
    return this.#transport.json<Tenant>({ method: "GET", path: ["v1", "tenants", name] }, options);
  }

  list(options: CallOptions = {}): Pages<Tenant> {
    const request = { method: "GET", path: ["v1", "tenants"] } as const;
    return whole(async () => (await this.#transport.json<{ tenants: Tenant[] }>(request, options)).tenants);
  }

  update(name: string, options: CallOptions & { limits: TenantLimits }): Promise<Tenant> {
    const json = { limits: wireLimits(options.limits) };
    return this.#transport.json<Tenant>({ method: "PATCH", path: ["v1", "tenants", name], json }, options);
  }

  async delete(name: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: ["v1", "tenants", name] }, options);
  }
}

/** Pools: sandboxes that are made before they are asked for. */
export class Pools {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  list(options: CallOptions = {}): Pages<Pool> {
    const request = { method: "GET", path: ["v1", "pool"] } as const;
    return whole(async () => (await this.#transport.json<{ pools: Pool[] }>(request, options)).pools);
  }

  /** How many there are to be of a template and size; 0 for none. */
  set(template: string, size: string, target: number, options: CallOptions = {}): Promise<Pool> {
    const request = { method: "PUT", path: ["v1", "pool", template, size], json: { target } } as const;
    return this.#transport.json<Pool>(request, options);
  }
}

/** Kept copies of sandboxes. They are taken by `sandbox.snapshot()`. */
export class Snapshots {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  list(options: CallOptions = {}): Pages<Snapshot> {
    const request = { method: "GET", path: ["v1", "snapshots"] } as const;
    return whole(async () => (await this.#transport.json<{ snapshots: Snapshot[] }>(request, options)).snapshots);
  }

  get(id: string, options: CallOptions = {}): Promise<Snapshot> {
    return this.#transport.json<Snapshot>({ method: "GET", path: ["v1", "snapshots", id] }, options);
  }

  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: ["v1", "snapshots", id] }, options);
  }
}
