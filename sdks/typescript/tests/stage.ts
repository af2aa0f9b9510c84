// A real daemon for the tests: `wakeful-stage`, driven by lines.
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createInterface, type Interface } from "node:readline";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of this package. */
export const root = (function find(at: string): string {
  return existsSync(join(at, "package.json")) ? at : find(dirname(at));
})(dirname(fileURLToPath(import.meta.url)));

const program = process.env["WAKEFUL_STAGE"] ?? join(root, "../../target/release/wakeful-stage");

export class Stage {
  url = "";
  dataDir = "";
  readonly #child: ChildProcess;
  readonly #answers: AsyncIterator<string>;
  readonly #lines: Interface;
  readonly #ended: Promise<number | null>;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout! });
    this.#answers = this.#lines[Symbol.asyncIterator]();
    this.#ended = new Promise((resolve) => child.once("exit", resolve));
  }

  static async start(options: { config?: string; runtime?: string } = {}): Promise<Stage> {
    const args = ["--leftovers"];
    if (options.config !== undefined) args.push("--config", options.config);
    if (options.runtime !== undefined) args.push("--runtime", options.runtime);
    const stage = new Stage(spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] }));
    await stage.#place();
    return stage;
  }

  async #answer(): Promise<Record<string, unknown>> {
    const { done, value } = await this.#answers.next();
    if (done) throw new Error(`${program} ended`);
    return JSON.parse(value) as Record<string, unknown>;
  }

  async #place(): Promise<void> {
    const { url, data_dir: dataDir } = await this.#answer();
    this.url = String(url);
    this.dataDir = String(dataDir);
  }

  #say(line: string): void {
    this.#child.stdin!.write(`${line}\n`);
  }

  /** Ends the daemon in good order, and starts the next one at the same address. */
  restart(): Promise<void> {
    this.#say("restart");
    return this.#place();
  }

  /** The same by SIGKILL. */
  kill(): Promise<void> {
    this.#say("kill");
    return this.#place();
  }

  /** From here on nobody listens. */
  async stop(): Promise<void> {
    this.#say("stop");
    await this.#answer();
  }

  start(): Promise<void> {
    this.#say("start");
    return this.#place();
  }

  /** The token of the daemon's admin. */
  get adminToken(): string {
    return readFileSync(join(this.dataDir, "admin.token"), "utf8").trim();
  }

  /** Ends everything, and tells which sandboxes were left. */
  async end(): Promise<unknown[]> {
    this.#child.stdin!.end();
    const { leftovers } = await this.#answer();
    await this.#ended;
    return leftovers as unknown[];
  }
}
