import { Client } from "./client.js";
import { wireDuration } from "./duration.js";
import { streamError } from "./errors.js";
import { events, type EventOptions } from "./events.js";
import { exec, stream, type CommandOptions, type ExecOptions, type ExecResult } from "./exec.js";
import { Files } from "./files.js";
import { given, wireUpdate, type CreateOptions, type ForkOptions, type ListOptions, type UpdateOptions } from "./options.js";
import type { OutputStream } from "./output.js";
import type { Pages } from "./pages.js";
import { Ports } from "./ports.js";
import { Processes } from "./process.js";
import { Pty, type PtyOptions } from "./pty.js";
import { SLOW_MS, type Request, type Transport } from "./transport.js";
import type { CallOptions, Command, Duration, EgressReport, Event, ForkError, SandboxInfo, SandboxStatus, Snapshot } from "./types.js";

/** Where a shortcut goes: the client to use, if not one of the environment's settings. */
export interface ClientOption {
  client?: Client | undefined;
}

/** A sandbox. `await using` destroys an ephemeral one at the end of its block, and leaves a persistent one alone. */
export class Sandbox implements AsyncDisposable {
  /** What was last known of it. */
  info: SandboxInfo;
  readonly files: Files;
  readonly processes: Processes;
  readonly ports: Ports;
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport, info: SandboxInfo) {
    this.#transport = transport;
    this.info = info;
    this.files = new Files(transport, info.id);
    this.processes = new Processes(transport, info.id);
    this.ports = new Ports(transport, info.id);
  }

  /** Makes one; it runs when this resolves. */
  static create(options: CreateOptions & ClientOption): Promise<Sandbox> {
    return (options.client ?? new Client()).sandboxes.create(options);
  }

  static get(id: string, options: CallOptions & ClientOption = {}): Promise<Sandbox> {
    return (options.client ?? new Client()).sandboxes.get(id, options);
  }

  static list(options: ListOptions & ClientOption = {}): Pages<Sandbox> {
    return (options.client ?? new Client()).sandboxes.list(options);
  }

  get id(): string {
    return this.info.id;
  }

  /** As of `info`. */
  get status(): SandboxStatus {
    return this.info.status;
  }

  async #change(request: Omit<Request, "path"> & { rest?: string }, options: CallOptions, timeoutMs?: number): Promise<this> {
    const { rest, ...sent } = request;
    const path = ["v1", "sandboxes", this.id, ...(rest === undefined ? [] : [rest])];
    this.info = await this.#transport.json<SandboxInfo>({ ...sent, path }, options, timeoutMs);
    return this;
  }

  /** Asks for what is known of it now. Neither wakes it nor keeps it awake. */
  refresh(options: CallOptions = {}): Promise<this> {
    return this.#change({ method: "GET" }, options);
  }

  /** The address of the preview of a port. */
  async url(port: number, options: CallOptions = {}): Promise<string> {
    return (await this.ports.get(port, options)).url;
  }

  /** Runs a command to its end: text by a shell, a list without one. */
  exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    return exec(this.#transport, this.id, command, options);
  }

  /** Runs a command and gives what it writes as it does. Resolves when it runs. */
  stream(command: Command, options: CommandOptions = {}): Promise<OutputStream> {
    return stream(this.#transport, this.id, command, options);
  }

  /** Opens a terminal, a new one or one that was left. */
  pty(options: PtyOptions = {}): Promise<Pty> {
    return Pty.open(this.#transport, this.id, options);
  }

  /** Puts it to sleep; with `memory: false` only its disk is kept. `wait: false` does not wait until it sleeps. */
  suspend(options: CallOptions & { memory?: boolean | undefined; wait?: boolean | undefined } = {}): Promise<this> {
    const json = { memory: options.memory ?? true };
    const query = { wait: options.wait === false ? false : undefined };
    return this.#change({ method: "POST", rest: "suspend", json, query, again: "lost" }, options, SLOW_MS);
  }

  /** Wakes it; already awake is fine. */
  wake(options: CallOptions = {}): Promise<this> {
    return this.#change({ method: "POST", rest: "wake", query: { wait: true }, again: "lost" }, options, SLOW_MS);
  }

  /**
   * Children that go on from this instant, each on its own. What is not said is as here. If one of them cannot be made, the
   * others are destroyed, and this rejects with the reason.
   */
  async fork(count = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const json = given({
      count,
      mode: options.mode,
      timeout: wireDuration(options.timeout),
      idle_timeout: wireDuration(options.idleTimeout),
    });
    const answer = await this.#transport.json<{ sandboxes: SandboxInfo[]; errors: ForkError[] }>(
      { method: "POST", path: ["v1", "sandboxes", this.id, "fork"], json, idempotent: true },
      options,
      SLOW_MS,
    );
    const children = answer.sandboxes.map((info) => new Sandbox(this.#transport, info));
    const [failed] = answer.errors;
    if (failed) {
      await Promise.allSettled(children.map((child) => child.destroy()));
      throw streamError(failed);
    }
    return children;
  }

  /** A copy that is kept. Its id is a template for new sandboxes. */
  snapshot(name?: string, options: CallOptions = {}): Promise<Snapshot> {
    const path = ["v1", "sandboxes", this.id, "snapshots"];
    const request: Request = { method: "POST", path, json: given({ name }), idempotent: true };
    return this.#transport.json<Snapshot>(request, options, SLOW_MS);
  }

  /** Sets the lease of an ephemeral one, from now on; as it was created, if absent. */
  keepalive(timeout?: Duration, options: CallOptions = {}): Promise<this> {
    const json = given({ timeout: wireDuration(timeout) });
    return this.#change({ method: "POST", rest: "keepalive", json }, options);
  }

  /** Changes what is named. */
  update(options: UpdateOptions): Promise<this> {
    return this.#change({ method: "PATCH", json: wireUpdate(options) }, options);
  }

  /** What left it, and what was kept from leaving. */
  egress(options: CallOptions = {}): Promise<EgressReport> {
    return this.#transport.json<EgressReport>({ method: "GET", path: ["v1", "sandboxes", this.id, "egress"] }, options);
  }

  /** What happened to it, from the first event on or after the one that is named. */
  events(options: EventOptions = {}): AsyncGenerator<Event, void, undefined> {
    return events(this.#transport, this.id, options);
  }

  /** Ends it, with all that it holds. It may be gone already. */
  async destroy(options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: ["v1", "sandboxes", this.id] }, options, SLOW_MS);
    this.info = { ...this.info, status: "destroyed" };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.info.mode === "ephemeral" && this.info.status !== "destroyed") await this.destroy();
  }
}
