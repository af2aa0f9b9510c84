import assert from "node:assert/strict";
import { SuspendedDuringExec, type OutputStream, type Sandbox } from "wakeful";
import { persistent, rejected, until, type Context, type Scenario } from "../support.js";

/** Counts until it is told to stop: what was lost or told twice would be seen. */
const COUNTER = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep 0.02; done; echo end $i";

class Reader {
  lines: string[] = [];
  #rest = "";
  readonly done: Promise<number | undefined>;

  constructor(stream: OutputStream) {
    this.done = this.#read(stream);
    // Whoever waits for it sees what went wrong.
    this.done.catch(() => undefined);
  }

  async #read(stream: OutputStream): Promise<number | undefined> {
    for await (const frame of stream) {
      assert.notEqual(frame.type, "gap");
      if (frame.type !== "stdout") continue;
      const parts = (this.#rest + frame.text).split("\n");
      this.#rest = parts.pop() ?? "";
      this.lines.push(...parts);
    }
    return stream.exitCode;
  }

  /** Waits for more lines than there are. */
  async more(): Promise<void> {
    const had = this.lines.length;
    await until("the stream goes on", () => this.lines.length > had + 2);
  }

  /** Every number once, in order. */
  check(): void {
    const last = this.lines.length - 1;
    assert.deepEqual(this.lines.slice(0, -1), Array.from({ length: last }, (_, index) => String(index + 1)));
    assert.equal(this.lines.at(-1), `end ${last}`);
  }
}

async function counting(sandbox: Sandbox): Promise<Reader> {
  return new Reader(await sandbox.stream(COUNTER, { timeout: 0, timeoutMs: 90_000 }));
}

async function finish(sandbox: Sandbox, reader: Reader): Promise<void> {
  await sandbox.files.write("/tmp/stop", "");
  assert.equal(await reader.done, 0);
  reader.check();
}

export const stream_sleep: Scenario = async (context) => {
  await using sandbox = await persistent(context);
  const reader = await counting(sandbox);
  await reader.more();
  // A command that is waited for sleeps and goes on as well.
  const waited = sandbox.exec("echo before; while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo after", { timeout: 90 });
  await until("both run", async () => (await sandbox.processes.list()).filter((process) => process.running).length >= 2);
  await sandbox.suspend();
  // Whoever reads does not wake it.
  const events = [];
  for await (const event of sandbox.events()) events.push(event.type);
  assert.equal(events.at(-1), "suspended");
  assert.equal((await sandbox.refresh()).status, "suspended");
  await sandbox.wake();
  await reader.more();
  await sandbox.suspend();
  await sandbox.wake();
  await reader.more();
  await finish(sandbox, reader);
  assert.deepEqual(await waited.then((result) => [result.stdout, result.exitCode]), ["before\nafter\n", 0]);
};

export const stream_sleep_raises: Scenario = async (context) => {
  await using sandbox = await persistent(context);
  let told = "";
  const stream = await sandbox.stream(COUNTER, { timeout: 0, timeoutMs: 60_000, onSuspend: "raise" });
  const reading = (async () => {
    for await (const frame of stream) if (frame.type === "stdout") told += frame.text;
  })();
  const caught = rejected(SuspendedDuringExec, reading);
  await until("it counts", () => told.length > 8);
  await sandbox.suspend();
  const error = await caught;
  assert.deepEqual([error.pid, error.seq, error.code], [stream.pid, stream.seq, "suspended_during_exec"]);
  const process = await sandbox.processes.get(error.pid);
  await sandbox.files.write("/tmp/stop", "");
  for await (const frame of process.output({ from: error.seq })) {
    if (frame.type === "stdout") told += frame.text;
  }
  const lines = told.trimEnd().split("\n");
  const last = lines.length - 1;
  assert.deepEqual(lines.slice(0, -1), Array.from({ length: last }, (_, index) => String(index + 1)));
  // A call that waits for the end is refused in the same way.
  const waited = sandbox.exec("sleep 30", { onSuspend: "raise" });
  const refused = rejected(SuspendedDuringExec, waited);
  await until("it runs", async () => (await sandbox.processes.list()).some((other) => other.running));
  await sandbox.suspend();
  assert.ok((await refused).pid > 0);
};

async function across(context: Context, interrupt: () => Promise<void>): Promise<void> {
  await using sandbox = await persistent(context);
  const reader = await counting(sandbox);
  const pty = await sandbox.pty({ command: "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep 0.05; done" });
  let screen = "";
  const typed = (async () => {
    for await (const piece of pty) screen += new TextDecoder().decode(piece);
  })();
  await reader.more();
  await interrupt();
  await reader.more();
  const before = screen.length;
  await until("the terminal goes on", () => screen.length > before);
  await finish(sandbox, reader);
  await typed;
  const numbers = screen.trim().split(/\s+/);
  assert.deepEqual(numbers, numbers.map((_, index) => String(index + 1)));
  assert.equal(pty.exitCode, 0);
}

export const stream_restart: Scenario = (context) => across(context, () => context.stage.restart());

export const stream_kill: Scenario = (context) => across(context, () => context.stage.kill());
