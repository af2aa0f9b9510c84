import assert from "node:assert/strict";
import { CommandFailed, DeadlineExceeded, ProcessNotFound, type OutputFrame } from "wakeful";
import { base, rejected, text, until, type Scenario } from "../support.js";

export const exec: Scenario = async (context) => {
  await using sandbox = await base(context);
  const result = await sandbox.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "out\n", "err\n"]);
  assert.deepEqual([result.timedOut, result.signal, result.stdoutTruncated], [false, null, false]);
  assert.ok(result.durationMs >= 0 && result.pid > 0);
  const options = { env: { NAME: "é x" }, workdir: "/tmp", user: "root", stdin: "input" };
  const told = await sandbox.exec('echo "$NAME $PWD $(id -un) $(cat)"', options);
  assert.equal(told.stdout, "é x /tmp root input\n");
  assert.equal((await sandbox.exec(["printf", "%s|%s", "a b", "$HOME"])).stdout, "a b|$HOME");
  const late = await sandbox.exec("echo first; sleep 60", { timeout: 0.5 });
  assert.deepEqual([late.exitCode, late.timedOut, late.signal, late.stdout], [137, true, 9, "first\n"]);
  const killed = await sandbox.exec("kill -TERM $$");
  assert.deepEqual([killed.exitCode, killed.signal, killed.timedOut], [143, 15, false]);
  let [out, err] = ["", ""];
  const streamed = await sandbox.exec("echo a; echo b >&2; echo c", {
    onStdout: (piece) => (out += piece),
    onStderr: (piece) => (err += piece),
  });
  assert.deepEqual([out, err, streamed.stdout, streamed.exitCode], ["a\nc\n", "b\n", "a\nc\n", 0]);
};

export const exec_check: Scenario = async (context) => {
  await using sandbox = await base(context);
  assert.equal((await sandbox.exec("exit 7")).exitCode, 7);
  assert.equal((await sandbox.exec("exit 0", { check: true })).exitCode, 0);
  const error = await rejected(CommandFailed, sandbox.exec("echo half; echo why >&2; exit 7", { check: true }));
  assert.deepEqual([error.result.exitCode, error.result.stdout, error.result.stderr], [7, "half\n", "why\n"]);
  assert.match(error.message, /7: why/);
};

export const exec_stream: Scenario = async (context) => {
  await using sandbox = await base(context);
  // It goes on only when its first line was read: what arrives while it runs proves itself.
  const stream = await sandbox.stream("echo first; while [ ! -e /tmp/go ]; do sleep 0.05; done; printf '\\377\\376'; echo e >&2; exit 4");
  assert.ok(stream.pid > 0);
  const first = await stream.next();
  assert.ok(first?.type === "stdout" && first.text === "first\n");
  assert.equal(stream.exitCode, undefined);
  await sandbox.files.write("/tmp/go", "");
  const rest: OutputFrame[] = [];
  for await (const frame of stream) rest.push(frame);
  const bytes = rest.flatMap((frame) => (frame.type === "stdout" ? [...frame.data] : []));
  assert.deepEqual(bytes, [0xff, 0xfe]);
  assert.ok(rest.some((frame) => frame.type === "stderr" && frame.text === "e\n"));
  assert.equal(stream.exitCode, 4);
  assert.equal((await (await sandbox.stream("exit 9")).wait()).exitCode, 9);
};

export const exec_large: Scenario = async (context) => {
  await using sandbox = await base(context);
  const five = await sandbox.exec("head -c 5000000 /dev/zero | tr '\\0' x", { timeout: 60 });
  assert.deepEqual([five.stdout.length, five.stdoutTruncated], [5_000_000, false]);
  const twelve = await sandbox.exec("head -c 12000000 /dev/zero | tr '\\0' y; echo z >&2", { timeout: 60 });
  assert.deepEqual([twelve.stdout.length, twelve.stdoutTruncated], [8 << 20, true]);
  assert.deepEqual([twelve.stderr, twelve.stderrTruncated], ["z\n", false]);
  // Read as it comes, all of it comes: whoever writes waits for whoever reads.
  let [length, dropped] = [0, 0];
  const stream = await sandbox.stream("head -c 4000000 /dev/zero | tr '\\0' x", { timeout: 60 });
  for await (const frame of stream) {
    if (frame.type === "stdout") length += frame.data.length;
    if (frame.type === "gap") dropped += frame.droppedBytes;
  }
  assert.deepEqual([length + dropped, stream.exitCode], [4_000_000, 0]);
};

export const processes: Scenario = async (context) => {
  await using sandbox = await base(context);
  const process = await sandbox.processes.start("cat; echo ended", { keepAwake: true, env: { A: "1" } });
  assert.ok(process.running && process.exitCode === null && process.info.keep_awake);
  assert.ok((await sandbox.processes.list()).some(({ pid }) => pid === process.pid));
  await process.writeStdin("one\n");
  await process.writeStdin(new TextEncoder().encode("two\n"));
  async function* pieces(): AsyncGenerator<Uint8Array> {
    yield new TextEncoder().encode("thr");
    yield new TextEncoder().encode("ee\n");
  }
  await process.writeStdin(pieces());
  await process.closeStdin();
  assert.equal((await process.wait({ timeoutMs: 20_000 })).exitCode, 0);
  let all = "";
  for await (const frame of process.output()) if (frame.type === "stdout") all += frame.text;
  assert.equal(all, "one\ntwo\nthree\nended\n");

  const trapped = await sandbox.processes.start("trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done");
  const output = trapped.output();
  const first = await output.next();
  assert.ok(first?.type === "stdout" && first.text === "ready\n");
  await trapped.signal("USR1");
  assert.equal((await output.wait()).exitCode, 5);
  assert.equal((await trapped.refresh()).exitCode, 5);

  const endless = await sandbox.processes.start(["sleep", "1000"]);
  await rejected(DeadlineExceeded, endless.wait({ timeoutMs: 300 }));
  await endless.kill();
  assert.deepEqual(await endless.wait().then((exit) => [exit.exitCode, exit.signal]), [137, 9]);

  const eof = await sandbox.processes.start(["cat"]);
  await eof.writeStdin("all", { eof: true });
  assert.equal((await eof.wait()).exitCode, 0);

  const terminal = await sandbox.processes.start("read line; stty size", { pty: { cols: 70, rows: 20 } });
  await terminal.resize({ cols: 90, rows: 30 });
  await terminal.writeStdin("\n");
  await terminal.wait();
  let screen = "";
  for await (const frame of terminal.output()) if (frame.type === "stdout") screen += text(frame.data);
  assert.match(screen, /30 90/);
  assert.equal((await rejected(ProcessNotFound, sandbox.processes.get(99_999))).code, "process_not_found");
};

export const process_replay: Scenario = async (context) => {
  await using sandbox = await base(context);
  const process = await sandbox.processes.start("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done");
  const read = async (from?: number): Promise<[number, string][]> => {
    const frames: [number, string][] = [];
    await using output = process.output({ from });
    for await (const frame of output) frames.push([frame.seq, frame.type === "stdout" ? frame.text : frame.type]);
    return frames;
  };
  const whole = await read();
  assert.equal(whole.map(([, told]) => told).join(""), "1\n2\n3\n4\n5\nexit");
  assert.deepEqual(await read(), whole);
  const middle = whole[1]?.[0];
  assert.deepEqual(await read(middle), whole.slice(1));
  const there: OutputFrame[] = [];
  for await (const frame of process.output({ follow: false })) there.push(frame);
  assert.equal(there.at(-1)?.type, "exit");

  // More than the journal holds, with nobody reading.
  const loud = await sandbox.processes.start("head -c 3000000 /dev/zero | tr '\\0' x");
  await loud.wait();
  let [kept, dropped] = [0, 0];
  for await (const frame of loud.output()) {
    if (frame.type === "gap") dropped += frame.droppedBytes;
    if (frame.type === "stdout") kept += frame.data.length;
  }
  assert.ok(dropped > 0 && kept + dropped === 3_000_000, `${kept} + ${dropped}`);
};

export const cancel: Scenario = async (context) => {
  await using sandbox = await base(context);
  const open = (): number => globalThis.process.getActiveResourcesInfo().filter((name) => name === "TCPSocketWrap").length;
  const before = open();
  const reason = new Error("enough");
  const controller = new AbortController();
  const began = performance.now();
  const call = sandbox.exec("sleep 2; touch /tmp/went-on", { signal: controller.signal });
  setTimeout(() => controller.abort(reason), 200);
  await assert.rejects(call, reason);
  assert.ok(performance.now() - began < 1500);

  const stop = new AbortController();
  const stream = await sandbox.stream("while :; do echo x; sleep 0.05; done", { signal: stop.signal, timeout: "1m" });
  await assert.rejects(async () => {
    for await (const frame of stream) if (frame.type === "stdout") stop.abort(reason);
  }, reason);
  const left = await sandbox.stream("while :; do echo x; sleep 0.05; done", { timeout: "1m" });
  for await (const frame of left) if (frame.type === "stdout") break;
  await left.close();
  const pty = await sandbox.pty({ signal: AbortSignal.abort(reason) }).catch((error: unknown) => error);
  assert.equal(pty, reason);
  // What was given up goes on; nothing of ours does.
  await until("the command went on", () => sandbox.files.exists("/tmp/went-on"));
  assert.ok((await sandbox.processes.get(left.pid)).running);
  await until("connections are gone", () => open() <= before + 1);
};

export const deadline: Scenario = async (context) => {
  await using sandbox = await base(context);
  const began = performance.now();
  const error = await rejected(DeadlineExceeded, sandbox.exec("sleep 30", { timeoutMs: 300 }));
  assert.equal(error.timeoutMs, 300);
  const stream = await sandbox.stream("sleep 30", { timeoutMs: 300 });
  await rejected(DeadlineExceeded, stream.wait());
  const process = await sandbox.processes.start(["sleep", "30"]);
  await rejected(DeadlineExceeded, process.wait({ timeoutMs: 300 }));
  const pty = await sandbox.pty();
  await rejected(DeadlineExceeded, pty.wait({ timeoutMs: 300 }));
  await pty.detach();
  await rejected(DeadlineExceeded, async () => {
    for await (const event of sandbox.events({ follow: true, timeoutMs: 300 })) assert.ok(event.seq > 0);
  });
  const watch = await sandbox.files.watch("/tmp", { timeoutMs: 300 });
  await rejected(DeadlineExceeded, watch.next());
  assert.ok(performance.now() - began < 10_000);
};
