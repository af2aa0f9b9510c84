// Templates, and the builds that they come from.
import { wireDuration } from "./duration.js";
import { pause } from "./deadline.js";
import { BuildFailed, ConnectionFailed, Unavailable, WakefulError } from "./errors.js";
import { jsonLines } from "./lines.js";
import { given, wireEgress, wireIo, type EgressOptions, type IoOptions } from "./options.js";
import { RECONNECT_MS } from "./output.js";
import { Pages } from "./pages.js";
import { wireSource, type Source } from "./source.js";
import type { Request, Transport } from "./transport.js";
import type { BuildEnd, BuildProgress, CallOptions, Command, Duration, Template } from "./types.js";

/** How long a build is waited for unless something else is said. */
const BUILD_MS = 1_800_000;

export interface CreateTemplateOptions extends CallOptions {
  name: string;
  source: Source;
  tags?: readonly string[] | undefined;
  description?: string | undefined;
  defaultSize?: string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  egress?: EgressOptions | undefined;
  diskMb?: number | undefined;
  io?: IoOptions | undefined;
  user?: string | undefined;
  workdir?: string | undefined;
  /** What runs in its sandboxes from their first moment. */
  start?: Command | undefined;
  /** What ends with 0 once that is ready; a create waits for it. */
  ready?: Command | undefined;
  readyTimeout?: Duration | undefined;
  /** It is started once, and sandboxes are copies of one in which it is ready. */
  warm?: boolean | undefined;
  runtime?: string | undefined;
}

export interface WaitOptions extends CallOptions {
  /** Gets what the build says as it goes on. */
  onProgress?: ((progress: BuildProgress) => void) | undefined;
}

/** The templates of a server. */
export class Templates {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  #path(...rest: string[]): string[] {
    return ["v1", "templates", ...rest];
  }

  /** Begins a build; files of this machine are sent first. `wait` waits for its end. */
  async create(options: CreateTemplateOptions): Promise<Template> {
    const json = given({
      name: options.name,
      source: await wireSource(this.#transport, options.source, options),
      tags: options.tags && [...options.tags],
      description: options.description,
      default_size: options.defaultSize,
      env: options.env && { ...options.env },
      egress: wireEgress(options.egress),
      disk_mb: options.diskMb,
      io: wireIo(options.io),
      user: options.user,
      workdir: options.workdir,
      start: options.start,
      ready: options.ready,
      ready_timeout: wireDuration(options.readyTimeout),
      warm: options.warm,
      runtime: options.runtime,
    });
    return this.#transport.json<Template>({ method: "POST", path: this.#path(), json, idempotent: true }, options);
  }

  /** By name, `name:tag` or id. */
  get(name: string, options: CallOptions = {}): Promise<Template> {
    return this.#transport.json<Template>({ method: "GET", path: this.#path(name) }, options);
  }

  list(options: CallOptions = {}): Pages<Template> {
    return new Pages(async () => {
      const request: Request = { method: "GET", path: this.#path() };
      const { templates } = await this.#transport.json<{ templates: Template[] }>(request, options);
      return { items: templates, next: undefined };
    });
  }

  async delete(name: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: this.#path(name) }, options);
  }

  /** Builds it again, of the same source or of another upload. */
  rebuild(name: string, options: CallOptions & { upload?: string | undefined } = {}): Promise<Template> {
    const json = given({ upload: options.upload });
    return this.#transport.json<Template>({ method: "POST", path: this.#path(name, "rebuild"), json }, options);
  }

  /** Ends the build that is under way. */
  cancel(name: string, options: CallOptions = {}): Promise<Template> {
    return this.#transport.json<Template>({ method: "POST", path: this.#path(name, "cancel") }, options);
  }

  /** What its last build said; with `follow` until it ends. The last one tells how the build stands. */
  async *logs(
    name: string,
    options: CallOptions & { follow?: boolean | undefined } = {},
  ): AsyncGenerator<BuildProgress | BuildEnd, void, undefined> {
    const deadline = this.#transport.deadline(`the log of ${name}`, options, undefined);
    const path = this.#path(name, "logs");
    let told = 0;
    let first: string | undefined;
    let lostAt: number | undefined;
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          const request: Request = { method: "GET", path, query: { follow: options.follow ?? false }, again: "never" };
          const response = await this.#transport.open(request, deadline);
          let line = 0;
          for await (const event of jsonLines<BuildProgress | BuildEnd>(response, deadline)) {
            lostAt = undefined;
            if (event.type === "end") {
              // A server that goes down ends the log of a build that it will begin again.
              if (options.follow && (event.status === "pending" || event.status === "building")) break;
              yield event;
              return;
            }
            if (event.type !== "progress") continue;
            // It is kept whole: what was told before the connection was lost comes again, unless the build began again.
            if (++line === 1 && first !== (first = JSON.stringify(event))) told = 0;
            if (line <= told) continue;
            told = line;
            yield event;
          }
        } catch (error) {
          deadline.check();
          if (!(error instanceof ConnectionFailed || error instanceof Unavailable)) throw error;
          lostAt ??= performance.now();
          if (performance.now() - lostAt > RECONNECT_MS) throw error;
        }
        await deadline.sleep(pause(attempt));
      }
    } finally {
      deadline.abort(undefined);
    }
  }

  /** Waits for the end of its build: half an hour, unless something else is said. Rejects with `BuildFailed`. */
  async wait(name: string, options: WaitOptions = {}): Promise<Template> {
    const deadline = this.#transport.deadline(`the build of ${name}`, options, BUILD_MS);
    const call = { signal: deadline.signal };
    try {
      for (let attempt = 0; ; attempt++) {
        for await (const event of this.logs(name, { ...call, follow: true })) {
          if (event.type === "progress") options.onProgress?.(event);
        }
        const template = await this.get(name, call);
        if (template.build_error) throw new BuildFailed(name, template.build_error);
        if (template.status === "ready") return template;
        if (template.status === "failed" || template.status === "deleted") {
          throw new WakefulError(`the build of ${name} is ${template.status}`);
        }
        // It has not begun yet, or was begun again.
        await deadline.sleep(pause(attempt));
      }
    } finally {
      deadline.close();
    }
  }
}
