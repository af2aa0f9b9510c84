import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  ApiError,
  Client,
  CommandNotFound,
  ConnectionFailed,
  Exhausted,
  FileTooLarge,
  GuestUnresponsive,
  InternalError,
  InvalidRequest,
  NotFound,
  NotSuspendable,
  ProtocolError,
  QuotaExceeded,
  SandboxDestroyed,
  SandboxFailed,
  Unavailable,
  WakefulError,
} from "wakeful";
import { Lossy } from "../proxy.js";
import { base, enginePid, persistent, rejected, until, type Scenario } from "../support.js";
import { withKeys } from "./admin.js";

export const retries: Scenario = async (context) => {
  await using proxy = await Lossy.start(context.stage.url);
  const client = new Client({ url: proxy.url });
  const metadata = { retry: crypto.randomUUID() };
  const sent = (line: string): number => proxy.requests.filter((request) => request.startsWith(line)).length;
  proxy.losses = 1;
  const sandbox = await client.sandboxes.create({ template: "base", metadata });
  assert.equal(sent("POST /v1/sandboxes"), 2);
  assert.deepEqual((await context.client.sandboxes.list({ metadata }).all()).map(({ id }) => id), [sandbox.id]);
  proxy.losses = 1;
  await sandbox.refresh();
  proxy.losses = 1;
  const snapshot = await sandbox.snapshot();
  assert.equal((await client.snapshots.list().all()).filter((other) => other.sandbox_id === sandbox.id).length, 1);
  await client.snapshots.delete(snapshot.id);

  // A command may have run: whoever asked for it must decide.
  proxy.losses = 1;
  await rejected(ConnectionFailed, sandbox.exec("echo x >> /home/user/runs"));
  await until("it ran", () => sandbox.files.exists("/home/user/runs"));
  assert.equal(await sandbox.files.readText("/home/user/runs"), "x\n");
  assert.equal(sent(`POST /v1/sandboxes/${sandbox.id}/execute`), 1);

  // Nobody listened, so it cannot have run: then it is sent again.
  const direct = await context.client.sandboxes.get(sandbox.id);
  await context.stage.stop();
  await rejected(ConnectionFailed, direct.refresh({ timeoutMs: 500 }));
  const late = direct.exec("echo x >> /home/user/runs");
  const [, started] = await Promise.all([context.stage.start(), late]);
  assert.equal(started.exitCode, 0);
  assert.equal(await direct.files.readText("/home/user/runs"), "x\nx\n");
  await sandbox.destroy();
};

/** Answers that a right server never gives. */
async function wrongServer(): Promise<{ server: Server; url: string }> {
  const server = createServer((request, response) => {
    if (request.url === "/v1/info") return response.end("<html>not JSON");
    response.statusCode = 500;
    response.setHeader("x-request-id", "req_1");
    const problem = { status: 500, code: "internal", detail: "something broke", hint: null, field: null, request_id: "req_1" };
    return response.end(JSON.stringify(problem));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

export const exceptions: Scenario = async (context) => {
  const { client } = context;
  await using sandbox = await base(context);
  const invalid = await rejected(InvalidRequest, base(context, { size: "enormous" }));
  assert.deepEqual([invalid.status, invalid.code, invalid.field], [400, "invalid_size", "size"]);
  assert.ok(invalid instanceof ApiError && invalid instanceof WakefulError && invalid instanceof Error);
  assert.ok(invalid.hint && invalid.requestId && invalid.message.includes(invalid.detail));
  assert.equal((await rejected(NotFound, client.snapshots.get("snp_aaaaaaaaaaaaaaaaaaaa"))).code, "snapshot_not_found");
  assert.equal((await rejected(CommandNotFound, sandbox.exec(["no-such-program"]))).status, 422);
  assert.equal((await rejected(Unavailable, base(context, { runtime: "firecracker" }))).code, "runtime_unavailable");

  const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  const large = await open(join(dir, "large"), "w");
  await large.truncate(104_857_601);
  await large.close();
  const tooLarge = await rejected(FileTooLarge, sandbox.files.upload(join(dir, "large"), "/tmp/large"));
  assert.deepEqual([tooLarge.status, await sandbox.files.exists("/tmp/large")], [413, false]);
  await rm(dir, { recursive: true });

  // A program that was deleted while it runs.
  await using held = await persistent(context);
  await held.exec("cp /bin/sleep /home/user/held");
  const holder = await held.processes.start(["/home/user/held", "1000"]);
  await held.exec("rm /home/user/held");
  assert.ok((await rejected(NotSuspendable, held.suspend())).detail.includes("held"));
  await holder.kill();

  // An engine that died.
  await using dead = await persistent(context);
  process.kill(enginePid(dead), "SIGKILL");
  await until("it has failed", async () => (await dead.refresh()).status === "failed");
  assert.equal((await rejected(SandboxFailed, dead.exec("true"))).code, "sandbox_failed");

  const gone = await base(context);
  await gone.destroy();
  assert.equal((await rejected(SandboxDestroyed, gone.exec("true"))).code, "sandbox_destroyed");

  // An agent that stands still. It is not asked again: the server has waited for it.
  await using hung = await base(context);
  process.kill(enginePid(hung), "SIGSTOP");
  const unresponsive = rejected(GuestUnresponsive, hung.exec("true"));
  assert.equal((await unresponsive).status, 502);
  process.kill(enginePid(hung), "SIGCONT");

  const { server, url } = await wrongServer();
  const misled = new Client({ url });
  const internal = await rejected(InternalError, misled.usage());
  assert.deepEqual([internal.code, internal.requestId], ["internal", "req_1"]);
  await rejected(ProtocolError, misled.info());
  server.close();
  server.closeAllConnections();
  await rejected(ConnectionFailed, misled.info({ timeoutMs: 2000 }));

  const closed = new Client({ url: context.stage.url });
  closed.close();
  await rejected(WakefulError, closed.info());
  await rejected(WakefulError, async () => new Client({ url: "not an address" }));

  await withKeys(async (stage, admin) => {
    await admin.tenants.create("small", { limits: { sandboxes: 1 } });
    const { key } = await admin.keys.create("small", { tenant: "small", scopes: ["sandbox:*"] });
    const small = new Client({ url: stage.url, apiKey: key });
    await using first = await small.sandboxes.create({ template: "base", cpu: 1, memoryMb: 128 });
    const quota = await rejected(QuotaExceeded, small.sandboxes.create({ template: "base" }));
    assert.deepEqual([first.status, quota.status, quota.code], ["running", 429, "quota_exceeded"]);
    const exhausted = await rejected(Exhausted, admin.sandboxes.create({ template: "base", cpu: 1, memoryMb: 4096 }));
    assert.deepEqual([exhausted.status, exhausted.code], [507, "insufficient_capacity"]);
  });
};
