// What happens to files, as it happens, also across sleeps and restarts.
import { untilAwake } from "./awake.js";
import { pause, type Deadline } from "./deadline.js";
import { ConnectionFailed, SandboxSuspended, SuspendedDuringExec, Unavailable, WakefulError, streamError } from "./errors.js";
import { jsonLines } from "./lines.js";
import { RECONNECT_MS, type StreamOptions } from "./output.js";
import type { Transport } from "./transport.js";
import type { FileChange, OnSuspend } from "./types.js";

export interface WatchOptions extends StreamOptions {
  /** Also what is below its directories. */
  recursive?: boolean | undefined;
}

type Line = FileChange | { type: "keepalive" } | { type: "suspended" } | { type: "error"; code: string; detail: string };

/** Changes below a directory. What happened while nobody watched is told as `overflow`. */
export class Watch implements AsyncIterable<FileChange>, AsyncDisposable {
  readonly #changes: AsyncGenerator<FileChange, void, undefined>;
  readonly #transport: Transport;
  readonly #sandbox: string;
  readonly #open: () => Promise<Response>;
  readonly #deadline: Deadline;
  readonly #onSuspend: OnSuspend;
  #closed = false;

  private constructor(
    transport: Transport,
    sandbox: string,
    open: () => Promise<Response>,
    deadline: Deadline,
    onSuspend: OnSuspend,
    first: Response,
  ) {
    this.#transport = transport;
    this.#sandbox = sandbox;
    this.#open = open;
    this.#deadline = deadline;
    this.#onSuspend = onSuspend;
    this.#changes = this.#walk(first);
  }

  /** @internal */
  static async open(transport: Transport, sandbox: string, path: string[], options: WatchOptions): Promise<Watch> {
    const deadline = transport.deadline("watching files", options, undefined);
    const query = { watch: true, recursive: options.recursive ? true : undefined };
    const open = (): Promise<Response> => transport.open({ method: "GET", path, query }, deadline);
    try {
      return new Watch(transport, sandbox, open, deadline, options.onSuspend ?? "wait", await open());
    } catch (error) {
      deadline.close();
      throw error;
    }
  }

  /** The next change; `undefined` after `close`. */
  async next(): Promise<FileChange | undefined> {
    const { done, value } = await this.#changes.next();
    return done ? undefined : value;
  }

  [Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    return this.#changes;
  }

  /** Watches no more. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#deadline.abort(new WakefulError("the watch was closed"));
    await this.#changes.return().catch(() => undefined);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async *#walk(first: Response): AsyncGenerator<FileChange, void, undefined> {
    let response: Response | undefined = first;
    let lostAt: number | undefined;
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          if (!response) {
            response = await this.#open();
            yield { type: "overflow" };
          }
          for await (const line of jsonLines<Line>(response, this.#deadline)) {
            lostAt = undefined;
            attempt = 0;
            if (line.type === "error") throw streamError(line);
            if (line.type === "suspended") throw asleep(this.#sandbox);
            if (line.type !== "keepalive") yield line;
          }
          throw new ConnectionFailed("the watch ended");
        } catch (error) {
          this.#deadline.check();
          if (error instanceof SuspendedDuringExec || error instanceof SandboxSuspended) {
            if (this.#onSuspend === "raise") throw error;
            await untilAwake(this.#transport, this.#sandbox, this.#deadline);
          } else if (!(error instanceof ConnectionFailed || error instanceof Unavailable)) {
            throw error;
          }
          lostAt ??= performance.now();
          if (performance.now() - lostAt > RECONNECT_MS) throw error;
        }
        response = undefined;
        await this.#deadline.sleep(pause(attempt));
      }
    } catch (error) {
      if (!this.#closed) throw error;
    } finally {
      this.#deadline.close();
    }
  }
}

function asleep(id: string): SuspendedDuringExec {
  return new SuspendedDuringExec({
    status: 409,
    code: "suspended_during_exec",
    detail: `${id} was suspended while its files were watched`,
  });
}
