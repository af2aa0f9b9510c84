// Requests: where they go, what they carry, when they are sent again, and what a refusal becomes.
import { platform, Refused } from "#platform";
import { Deadline, pause } from "./deadline.js";
import { ConnectionFailed, ProtocolError, WakefulError, apiError, type ApiError, type Problem } from "./errors.js";
import type { Socket } from "./platform/platform.js";
import type { CallOptions } from "./types.js";

/** How long a plain call may take. */
export const CALL_MS = 60_000;
/** How long something may take that starts, stops or copies a sandbox. */
export const SLOW_MS = 180_000;
/** How long a transfer may take. */
export const TRANSFER_MS = 600_000;
/** How often a request is sent again. */
const RETRIES = 6;
/** The longest `Retry-After` that is waited for. */
const PATIENCE_MS = 30_000;

/** Without the last two, Node keeps all of a stream that it sends, in case that it must be sent to another address. */
const STREAMING = { duplex: "half", redirect: "error", window: null } as const;
/** Of what is refused for now, what another try would not change: the server has waited already, or cannot. */
const FINAL: ReadonlySet<string> = new Set(["guest_unresponsive", "port_not_open", "runtime_unavailable"]);

export interface Request {
  readonly method: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Segments; each is encoded. */
  readonly path: readonly (string | number)[];
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  readonly json?: unknown;
  /** Made anew for each try. */
  readonly body?: () => BodyInit | ReadableStream<Uint8Array>;
  readonly headers?: Readonly<Record<string, string>>;
  /**
   * When it is sent again: whenever the answer was lost (`lost`, the default of everything but POST and PATCH), only if it
   * never arrived (`refused`), or not at all.
   */
  readonly again?: "lost" | "refused" | "never";
  /** A key that makes a POST the same one when it is sent again. */
  readonly idempotent?: boolean;
}

/** Whether the request did not even leave: nobody listened. */
function wasRefused(error: unknown): boolean {
  for (let at: unknown = error, depth = 0; at instanceof Error && depth < 5; at = at.cause, depth++) {
    const { code, errors } = at as { code?: unknown; errors?: unknown };
    if (code === "ECONNREFUSED" || code === "ConnectionRefused") return true;
    if (/connection refused/i.test(at.message)) return true;
    if (Array.isArray(errors) && errors.length > 0 && errors.every(wasRefused)) return true;
  }
  return false;
}

/** Not `randomUUID`: pages without TLS have none. */
function randomKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function reason(error: unknown): string {
  let at = error;
  while (at instanceof Error && at.cause instanceof Error) at = at.cause;
  return at instanceof Error ? at.message || at.name : String(at);
}

/** The error for an answer that is no success. */
export function problem(status: number, text: string, requestId: string | null): ApiError {
  try {
    const told = JSON.parse(text) as Partial<Problem>;
    if (typeof told.code === "string" && typeof told.detail === "string") {
      return apiError({ ...(told as Problem), status });
    }
  } catch {
    // Not ours: a proxy's page, say.
  }
  const detail = text.trim().slice(0, 200) || `the server answered ${status}`;
  const common = { status, code: `http_${status}`, detail };
  return apiError(requestId === null ? common : { ...common, request_id: requestId });
}

export interface TransportOptions {
  readonly url: string;
  readonly apiKey: string | undefined;
  readonly timeoutMs: number | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly fetch: typeof fetch;
}

export class Transport {
  readonly base: URL;
  readonly #options: TransportOptions;
  readonly #open = new Set<() => void>();
  #closed: WakefulError | undefined;

  constructor(options: TransportOptions) {
    this.#options = options;
    try {
      this.base = new URL(options.url);
    } catch {
      throw new WakefulError(`${JSON.stringify(options.url)} is not the address of a server`);
    }
    if (!/^https?:$/.test(this.base.protocol)) throw new WakefulError(`${options.url}: http or https is needed`);
  }

  /** Ends everything that goes on. */
  close(): void {
    this.#closed ??= new WakefulError("the client was closed");
    for (const end of [...this.#open]) end();
  }

  /** Has something ended with the client; returns what forgets it. */
  onClose(end: () => void): () => void {
    this.#open.add(end);
    return () => this.#open.delete(end);
  }

  /** The end of a call; whoever makes one closes it. */
  deadline(what: string, options: CallOptions, timeoutMs: number | undefined): Deadline {
    const limit = timeoutMs === CALL_MS ? (this.#options.timeoutMs ?? timeoutMs) : timeoutMs;
    const end = (): void => deadline.abort(this.#closed);
    const deadline: Deadline = new Deadline(what, options, limit, this.onClose(end));
    if (this.#closed) end();
    return deadline;
  }

  url(path: Request["path"], query: Request["query"] = {}): URL {
    const url = new URL(this.base);
    url.pathname = `${url.pathname.replace(/\/$/, "")}/${path.map((part) => encodeURIComponent(part)).join("/")}`;
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url;
  }

  headers(): Record<string, string> {
    const { apiKey, headers } = this.#options;
    const key = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
    return { ...platform.headers, ...key, ...headers };
  }

  /** A request whose answer is JSON. */
  json<T>(request: Request, options: CallOptions, timeoutMs = CALL_MS): Promise<T> {
    return this.call(request, options, timeoutMs, async (response) => {
      const text = await response.text();
      try {
        return JSON.parse(text) as T;
      } catch {
        const place = `${request.method} ${response.url || request.path.join("/")}`;
        throw new ProtocolError(`the answer to ${place} is not JSON: ${text.slice(0, 100)}`);
      }
    });
  }

  /** A request whose answer is of no interest. */
  async done(request: Request, options: CallOptions, timeoutMs = CALL_MS): Promise<void> {
    await this.call(request, options, timeoutMs, (response) => response.arrayBuffer());
  }

  async call<T>(
    request: Request,
    options: CallOptions,
    timeoutMs: number,
    read: (response: Response) => Promise<T>,
  ): Promise<T> {
    const deadline = this.deadline(`${request.method} /${request.path.join("/")}`, options, timeoutMs);
    try {
      return await this.send(request, deadline, read);
    } finally {
      deadline.close();
    }
  }

  /** Sends a request, again if it must be, until the deadline. `read` is part of a try. */
  async send<T>(request: Request, deadline: Deadline, read: (response: Response) => Promise<T>): Promise<T> {
    const url = this.url(request.path, request.query);
    const headers = { ...this.headers(), ...request.headers };
    if (request.idempotent) headers["idempotency-key"] = randomKey();
    if (request.json !== undefined) headers["content-type"] = "application/json";
    const repeatable = request.idempotent || (request.method !== "POST" && request.method !== "PATCH");
    const again = request.again ?? (repeatable ? "lost" : "refused");
    for (let attempt = 0; ; attempt++) {
      deadline.check();
      const [error, wait] = await this.#try(request, url, headers, deadline, read);
      if (error === undefined) return wait;
      const late = error.waitMs ?? pause(attempt);
      const may = error.never || attempt >= RETRIES ? false : again === "lost" || (again === "refused" && error.refused);
      if (!may || late > PATIENCE_MS || late > deadline.remainingMs) throw error.error;
      await deadline.sleep(late);
    }
  }

  async #try<T>(
    request: Request,
    url: URL,
    headers: Record<string, string>,
    deadline: Deadline,
    read: (response: Response) => Promise<T>,
  ): Promise<[undefined, T] | [Failure, undefined]> {
    const body = request.json === undefined ? request.body?.() : JSON.stringify(request.json);
    const streaming = body instanceof ReadableStream ? STREAMING : {};
    try {
      const response = await this.#options.fetch(url, {
        method: request.method,
        headers,
        signal: deadline.signal,
        ...(body === undefined ? {} : { body: body as BodyInit }),
        ...streaming,
      });
      if (response.ok) return [undefined, await read(response)];
      const error = problem(response.status, await response.text(), response.headers.get("x-request-id"));
      const after = Number(response.headers.get("retry-after") ?? Number.NaN);
      const unavailable = response.status >= 502 && response.status <= 504 && !FINAL.has(error.code);
      return [
        { error, refused: false, never: !unavailable, waitMs: Number.isFinite(after) ? after * 1000 : undefined },
        undefined,
      ];
    } catch (error) {
      deadline.check();
      if (error instanceof WakefulError) return [{ error, refused: false, never: true, waitMs: undefined }, undefined];
      const failed = new ConnectionFailed(`cannot reach ${url.host}: ${reason(error)}`, { cause: error });
      return [{ error: failed, refused: wasRefused(error), never: false, waitMs: undefined }, undefined];
    }
  }

  /** Opens a stream: its head must come soon, how long its body takes is the deadline's affair. */
  async open(request: Request, deadline: Deadline): Promise<Response> {
    const head = new Deadline(`${request.method} /${request.path.join("/")}`, { signal: deadline.signal }, SLOW_MS);
    // Not closed: what gives the deadline up must still end the body.
    return this.send(request, head, async (answer) => answer).finally(() => head.lift());
  }

  /** Whether WebSockets are let in: a browser's cannot carry a key. */
  get sockets(): boolean {
    return platform.socketHeaders || this.#options.apiKey === undefined;
  }

  /** Opens a WebSocket. It is not tried again. */
  async socket(path: Request["path"], query: Request["query"], deadline: Deadline): Promise<Socket> {
    if (!this.sockets) {
      throw new WakefulError("a browser's WebSocket cannot carry a key: go through a server of your own that adds it");
    }
    const url = this.url(path, query);
    url.protocol = url.protocol.replace("http", "ws");
    try {
      return await platform.connect(url, this.headers(), deadline.signal);
    } catch (error) {
      deadline.check();
      if (error instanceof Refused) throw problem(error.status, error.body, null);
      throw error;
    }
  }
}

interface Failure {
  readonly error: Error;
  /** It never arrived. */
  readonly refused: boolean;
  /** Sending it again would not help. */
  readonly never: boolean;
  readonly waitMs: number | undefined;
}
