// What all scenarios use.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Client, Sandbox, type CreateOptions } from "wakeful";
import { meet } from "./record.js";
import type { Stage } from "./stage.js";

export interface Context {
  readonly stage: Stage;
  readonly client: Client;
}

export type Scenario = (context: Context) => Promise<void>;

/** A sandbox of the smallest template. */
export function base(context: Context, options: Partial<CreateOptions> = {}): Promise<Sandbox> {
  return context.client.sandboxes.create({ template: "base", ...options });
}

/** One that sleeps and wakes; destroyed at the end all the same. */
export async function persistent(context: Context, options: Partial<CreateOptions> = {}): Promise<Sandbox & AsyncDisposable> {
  const sandbox = await base(context, { mode: "persistent", ...options });
  return Object.assign(sandbox, { [Symbol.asyncDispose]: () => sandbox.destroy() });
}

type ErrorClass<E> = new (...args: never[]) => E;

/** The error that something ends with; of exactly this type. */
export async function rejected<E extends Error>(type: ErrorClass<E>, work: Promise<unknown> | (() => Promise<unknown>)): Promise<E> {
  try {
    await (typeof work === "function" ? work() : work);
  } catch (error) {
    meet(error);
    assert.equal((error as Error).name, type.name, String(error));
    assert.ok(error instanceof type, String(error));
    return error;
  }
  return assert.fail(`no ${type.name} came`);
}

/** Waits until something holds. */
export async function until(what: string, holds: () => Promise<boolean> | boolean, timeoutMs = 30_000): Promise<void> {
  const end = performance.now() + timeoutMs;
  while (!(await holds())) {
    assert.ok(performance.now() < end, `${what} did not come to hold`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** The engine of a sandbox: a process of this machine. */
export function enginePid(sandbox: Sandbox): number {
  const bare = sandbox.id.replace(/^sbx_/, "");
  for (const run of readdirSync("/run/wakeful")) {
    try {
      return Number(readFileSync(join("/run/wakeful", run, bare, "pid"), "utf8").trim());
    } catch {
      continue;
    }
  }
  return assert.fail(`${sandbox.id} has no engine`);
}

export function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

/** What a terminal shows until something is in it. */
export async function shown(pty: { next(): Promise<Uint8Array | undefined> }, wanted: string): Promise<string> {
  let all = "";
  while (!all.includes(wanted)) {
    const piece = await pty.next();
    assert.ok(piece, `the terminal ended before ${JSON.stringify(wanted)}: ${JSON.stringify(all)}`);
    all += text(piece);
  }
  return all;
}
