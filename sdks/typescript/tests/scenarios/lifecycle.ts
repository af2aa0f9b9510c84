import assert from "node:assert/strict";
import { Client, Conflict, InvalidRequest, Sandbox, SandboxNotFound, SandboxSuspended } from "wakeful";
import { base, persistent, rejected, until, type Scenario } from "../support.js";

export const quickstart: Scenario = async ({ stage }) => {
  process.env["WAKEFUL_URL"] = stage.url;
  try {
    const sandbox = await Sandbox.create({ template: "base" });
    const { stdout } = await sandbox.exec("echo hello");
    assert.equal(stdout, "hello\n");
    await sandbox.destroy();
    assert.equal((await Sandbox.get(sandbox.id)).status, "destroyed");
    assert.ok(!(await Sandbox.list().all()).some((other) => other.id === sandbox.id));
  } finally {
    delete process.env["WAKEFUL_URL"];
  }
};

export const context: Scenario = async (context) => {
  let inside: Sandbox;
  {
    await using sandbox = await base(context);
    inside = sandbox;
    assert.equal((await sandbox.exec("true")).exitCode, 0);
  }
  assert.equal((await inside.refresh()).status, "destroyed");
  const failure = new Error("in the block");
  await assert.rejects(async () => {
    await using sandbox = await base(context);
    inside = sandbox;
    throw failure;
  }, failure);
  assert.equal((await inside.refresh()).status, "destroyed");
  {
    await using sandbox = await base(context, { mode: "persistent" });
    inside = sandbox;
  }
  assert.equal((await inside.refresh()).status, "running");
  await inside.destroy();
};

export const create_options: Scenario = async (context) => {
  await using sandbox = await base(context, {
    size: "shared-cpu-2x",
    timeout: "10m",
    hardTtl: 3600,
    diskMb: 4096,
    env: { COLOUR: "blue" },
    metadata: { team: "blue" },
    egress: { allowCidrs: ["203.0.113.0/24"], allowPorts: [443] },
    autoResume: false,
    runtime: "gvisor",
  });
  const { info } = sandbox;
  assert.deepEqual([info.size, info.mode, info.timeout_seconds, info.disk_mb], ["shared-cpu-2x", "ephemeral", 600, 4096]);
  assert.deepEqual([info.env_keys, info.metadata, info.auto_resume, info.runtime], [["COLOUR"], { team: "blue" }, false, "gvisor"]);
  assert.equal(info.egress.mode, "deny_all");
  assert.deepEqual([info.egress.allow_cidrs, info.egress.allow_ports], [["203.0.113.0/24"], [443]]);
  const ttl = Date.parse(info.hard_expires_at ?? "") - Date.parse(info.created_at);
  assert.ok(Math.abs(ttl - 3_600_000) < 5000, String(ttl));
  assert.equal((await sandbox.exec("echo $COLOUR")).stdout, "blue\n");

  await using sized = await persistent(context, { cpu: 1, memoryMb: 300, idleTimeout: 90.5 });
  assert.deepEqual([sized.info.cpu, sized.info.memory_mb, sized.info.size], [1, 300, null]);
  assert.ok([90, 91].includes(sized.info.idle_timeout_seconds ?? 0), String(sized.info.idle_timeout_seconds));
  // Limits of the disk's use go where the runtime has them: this one says that it has none.
  const refused = await rejected(InvalidRequest, base(context, { runtime: "gvisor", io: { opsPerSec: 500 } }));
  assert.deepEqual([refused.status, refused.code], [501, "unsupported_by_runtime"]);
};

export const lists: Scenario = async (context) => {
  const { client } = context;
  const metadata = { walk: crypto.randomUUID() };
  const made = await Promise.all([
    base(context, { metadata }),
    base(context, { metadata }),
    base(context, { metadata: { ...metadata, odd: "a&b=c" } }),
    base(context, { metadata, mode: "persistent" }),
    client.sandboxes.create({ template: "python", metadata }),
  ]);
  const ids = async (options: Parameters<Client["sandboxes"]["list"]>[0]): Promise<string[]> =>
    (await client.sandboxes.list({ metadata, ...options }).all()).map((sandbox) => sandbox.id).sort();
  const all = made.map((sandbox) => sandbox.id).sort();
  assert.deepEqual(await ids({ pageSize: 2 }), all);
  assert.deepEqual(await ids({ mode: "persistent" }), [made[3].id]);
  assert.deepEqual(await ids({ template: "python" }), [made[4].id]);
  assert.deepEqual(await ids({ metadata: { odd: "a&b=c" } }), [made[2].id]);
  await made[0].suspend();
  assert.deepEqual(await ids({ status: "suspended" }), [made[0].id]);
  let walked = 0;
  for await (const sandbox of client.sandboxes.list({ metadata, pageSize: 1 })) {
    assert.equal(sandbox.info.metadata["walk"], metadata.walk);
    if (++walked === 3) break;
  }
  assert.equal(walked, 3);
  await Promise.all(made.map((sandbox) => sandbox.destroy()));
  assert.deepEqual(await ids({}), []);
  assert.deepEqual(await ids({ status: "destroyed" }), all);
};

export const update: Scenario = async (context) => {
  await using sandbox = await persistent(context, { metadata: { a: "1" } });
  await sandbox.update({
    metadata: { b: "2" },
    idleTimeout: "20m",
    hardTtl: "2h",
    autoResume: false,
    egress: { allowDomains: ["example.com"] },
  });
  assert.deepEqual(sandbox.info.metadata, { b: "2" });
  assert.deepEqual([sandbox.info.idle_timeout_seconds, sandbox.info.auto_resume], [1200, false]);
  assert.deepEqual((await sandbox.refresh()).info.egress.allow_domains, ["example.com"]);
  await sandbox.update({ egress: { mode: "deny_all" } });
  await sandbox.exec(["bash", "-c", "echo > /dev/tcp/203.0.113.9/80"], { timeout: 2 });
  let report = await sandbox.egress();
  await until("what was refused is told", async () => (report = await sandbox.egress()).blocked.length > 0);
  assert.deepEqual([report.egress.mode, report.blocked[0]?.address, report.blocked[0]?.port], ["deny_all", "203.0.113.9", 80]);
  await sandbox.suspend();
  assert.equal((await sandbox.update({ diskMb: 4096 })).info.disk_mb, 4096);
};

export const sleep: Scenario = async (context) => {
  await using sandbox = await persistent(context);
  await sandbox.exec("echo kept > /tmp/kept");
  const counter = await sandbox.processes.start("i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done");
  await until("it counts", async () => (await sandbox.exec("cat /tmp/count")).stdout.trim() !== "");
  assert.equal((await sandbox.suspend()).status, "suspended");
  assert.equal((await sandbox.suspend()).status, "suspended");
  assert.equal((await sandbox.wake()).status, "running");
  assert.equal((await sandbox.wake()).info.restored_memory, true);
  assert.equal((await counter.refresh()).running, true);
  await sandbox.suspend({ wait: false });
  await until("it sleeps", async () => (await sandbox.refresh()).status === "suspended");
  // A call wakes it.
  assert.equal((await sandbox.exec("cat /tmp/kept")).stdout, "kept\n");
  assert.equal((await sandbox.refresh()).info.runtime_generation, 3);
  await sandbox.files.write("/home/user/disk", "there");
  assert.equal((await sandbox.suspend({ memory: false })).status, "suspended");
  assert.equal((await sandbox.wake()).info.restored_memory, false);
  assert.equal(await sandbox.files.readText("/home/user/disk"), "there");
  assert.ok(!(await sandbox.processes.list()).some((process) => process.pid === counter.pid && process.running));
};

export const auto_resume_off: Scenario = async (context) => {
  await using sandbox = await persistent(context, { autoResume: false });
  await sandbox.suspend();
  const error = await rejected(SandboxSuspended, sandbox.exec("true"));
  assert.deepEqual([error.status, error.code], [409, "sandbox_suspended"]);
  assert.match(error.hint ?? "", /wake/);
  await rejected(SandboxSuspended, sandbox.files.read("/etc/hostname"));
  await rejected(SandboxSuspended, sandbox.pty());
  assert.equal((await sandbox.refresh()).status, "suspended");
  await sandbox.wake();
  assert.equal((await sandbox.exec("true")).exitCode, 0);
};

export const keepalive: Scenario = async (context) => {
  await using sandbox = await base(context, { timeout: "5m" });
  const left = (): number => (Date.parse(sandbox.info.expires_at ?? "") - Date.now()) / 1000;
  await sandbox.keepalive("30m");
  assert.ok(left() > 1700 && left() < 1805, String(left()));
  await sandbox.keepalive(60);
  assert.ok(left() > 40 && left() < 65, String(left()));
  await sandbox.keepalive();
  assert.ok(left() > 280 && left() < 305, String(left()));
  await using lasting = await persistent(context);
  assert.equal((await rejected(Conflict, lasting.keepalive(60))).code, "not_ephemeral");
};

export const fork: Scenario = async (context) => {
  await using sandbox = await base(context);
  await sandbox.files.write("/tmp/who", "parent");
  const counter = await sandbox.processes.start("while :; do sleep 1; done");
  const children = await sandbox.fork(2, { mode: "ephemeral", timeout: "3m" });
  assert.equal(children.length, 2);
  const [first, second] = children as [Sandbox, Sandbox];
  try {
    assert.deepEqual([first.info.parent_id, first.info.timeout_seconds], [sandbox.id, 180]);
    await first.files.write("/tmp/who", "first");
    assert.equal(await second.files.readText("/tmp/who"), "parent");
    assert.equal(await sandbox.files.readText("/tmp/who"), "parent");
    assert.equal(await first.files.readText("/tmp/who"), "first");
    assert.ok((await second.processes.get(counter.pid)).running);
  } finally {
    await Promise.all(children.map((child) => child.destroy()));
  }
};

export const snapshots: Scenario = async (context) => {
  const { client } = context;
  await using sandbox = await base(context);
  await sandbox.files.write("/home/user/note", "before");
  const name = `before-${crypto.randomUUID().slice(0, 8)}`;
  const snapshot = await sandbox.snapshot(name);
  assert.deepEqual([snapshot.name, snapshot.sandbox_id], [name, sandbox.id]);
  await sandbox.files.write("/home/user/note", "after");
  assert.ok((await client.snapshots.list().all()).some((other) => other.id === snapshot.id));
  assert.equal((await client.snapshots.get(snapshot.id)).template, "base");
  {
    await using copy = await client.sandboxes.create({ template: snapshot.id });
    assert.equal(await copy.files.readText("/home/user/note"), "before");
  }
  await client.snapshots.delete(snapshot.id);
  assert.ok(!(await client.snapshots.list().all()).some((other) => other.id === snapshot.id));
};

export const events: Scenario = async (context) => {
  const sandbox = await base(context, { mode: "persistent" });
  await sandbox.suspend();
  await sandbox.wake();
  const types: string[] = [];
  for await (const event of sandbox.events({ pageSize: 2 })) types.push(event.type);
  assert.deepEqual(types, ["created", "suspend_started", "suspended", "wake_started", "woken"]);
  const followed: [number, string][] = [];
  const follower = (async () => {
    for await (const event of sandbox.events({ after: 2, follow: true, timeoutMs: 60_000 })) {
      followed.push([event.seq, event.type]);
    }
  })();
  await until("what happened is told", () => followed.length >= 3);
  await context.stage.restart();
  await sandbox.suspend();
  await until("it goes on after a restart", () => followed.some(([seq, type]) => seq > 5 && type === "suspended"));
  await sandbox.destroy();
  await follower;
  assert.deepEqual(followed.map(([seq]) => seq), followed.map((_, index) => index + 3));
  assert.equal(followed.at(-1)?.[1], "destroyed");
};

export const fifty: Scenario = async (context) => {
  const metadata = { crowd: crypto.randomUUID() };
  const waiting = Array.from({ length: 50 }, (_, index) => index);
  const seen: string[] = [];
  const made: Sandbox[] = [];
  // All at once at the end, but not all in the making: there are two processors.
  const worker = async (): Promise<void> => {
    for (let index = waiting.shift(); index !== undefined; index = waiting.shift()) {
      made.push(await base(context, { metadata, cpu: 1, memoryMb: 128, env: { INDEX: String(index) } }));
    }
  };
  await Promise.all(Array.from({ length: 8 }, worker));
  assert.equal((await context.client.sandboxes.list({ metadata, status: "running" }).all()).length, 50);
  await Promise.all(made.map(async (sandbox) => seen.push((await sandbox.exec("echo $INDEX")).stdout.trim())));
  assert.deepEqual(seen.map(Number).sort((a, b) => a - b), Array.from({ length: 50 }, (_, index) => index));
  await Promise.all(made.map((sandbox) => sandbox.destroy()));
  assert.deepEqual(await context.client.sandboxes.list({ metadata }).all(), []);
  await rejected(SandboxNotFound, context.client.sandboxes.get("sbx_aaaaaaaaaaaaaaaaaaaa"));
};
