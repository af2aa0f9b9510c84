import assert from "node:assert/strict";
import { Client, Conflict, PermissionDenied, Unauthenticated } from "wakeful";
import { Stage } from "../stage.js";
import { base, rejected, until, type Scenario } from "../support.js";

/** Keys change who may call: a daemon of its own, with little memory to give. */
export async function withKeys(work: (stage: Stage, admin: Client) => Promise<void>): Promise<void> {
  const stage = await Stage.start({ config: "[limits]\nmemory_mb = 1024\n" });
  try {
    await work(stage, new Client({ url: stage.url, apiKey: stage.adminToken }));
  } finally {
    assert.deepEqual(await stage.end(), []);
  }
}

export const admin: Scenario = async (context) => {
  const { client } = context;
  assert.equal((await client.health()).status, "ok");
  const info = await client.info();
  assert.ok(info.sizes.length > 0 && info.limits.upload_bytes === 104_857_600 && info.tenant === "default");
  const usage = await client.usage();
  assert.ok(usage.total_bytes > 0 && usage.kinds.length > 0);
  assert.ok((await client.prune({ unused: "1h" })).count >= 0);
  const size = info.defaults.size;
  const pool = await client.pools.set("base", size, 1);
  assert.deepEqual([pool.template, pool.size, pool.target], ["base", size, 1]);
  await until("a member is ready", async () => {
    const pools = await client.pools.list().all();
    return pools.some((other) => other.template === "base" && other.ready === 1);
  });
  await using sandbox = await base(context);
  assert.equal((await sandbox.exec("echo pooled")).stdout, "pooled\n");
  await client.pools.set("base", size, 0);
  await until("the pool is empty", async () => (await client.pools.list().all()).every((other) => other.ready === 0));

  await withKeys(async (stage) => {
    const open = new Client({ url: stage.url });
    const tenant = await open.tenants.create("research", { limits: { sandboxes: 2, memoryMb: 512 } });
    assert.deepEqual([tenant.limits.sandboxes, tenant.limits.disk_mb], [2, null]);
    assert.equal((await open.tenants.update("research", { limits: { sandboxes: null } })).limits.sandboxes, null);
    assert.equal((await open.tenants.get("research")).limits.memory_mb, 512);
    assert.deepEqual((await open.tenants.list().all()).map(({ name }) => name).sort(), ["default", "research"]);
    assert.equal((await rejected(Conflict, open.tenants.create("research"))).code, "name_taken");
    const created = await open.keys.create("notebook", { tenant: "research", scopes: ["sandbox:*"] });
    assert.match(created.key, /^wkf_[0-9a-f]{40}$/);
    const admin = new Client({ url: stage.url, apiKey: stage.adminToken });
    const keys = await admin.keys.list({ tenant: "research" }).all();
    assert.deepEqual(keys.map(({ id, name }) => [id, name]), [[created.id, "notebook"]]);
    await admin.keys.create("other");
    await admin.keys.delete(created.id);
    assert.equal((await admin.keys.list().all()).length, 1);
    await admin.tenants.delete("research");
  });
};

export const auth: Scenario = async () => {
  await withKeys(async (stage, admin) => {
    await admin.tenants.create("one");
    await admin.tenants.create("two");
    const key = (await admin.keys.create("one", { tenant: "one", scopes: ["sandbox:*"] })).key;
    const other = (await admin.keys.create("two", { tenant: "two", scopes: ["sandbox:*"] })).key;
    const none = await rejected(Unauthenticated, new Client({ url: stage.url }).info());
    assert.deepEqual([none.status, none.code], [401, "unauthenticated"]);
    const wrong = new Client({ url: stage.url, apiKey: `wkf_${"0".repeat(40)}` });
    await rejected(Unauthenticated, wrong.sandboxes.list().all());
    assert.equal((await wrong.health()).status, "ok");

    await using client = new Client({ url: stage.url, apiKey: key });
    const sandbox = await client.sandboxes.create({ template: "base", cpu: 1, memoryMb: 128 });
    assert.equal((await sandbox.exec("echo in")).stdout, "in\n");
    // WebSockets carry the key too.
    const pty = await sandbox.pty({ command: "echo typed" });
    assert.equal((await pty.wait()).exitCode, 0);
    const stranger = new Client({ url: stage.url, apiKey: other });
    assert.equal((await rejected(PermissionDenied, stranger.sandboxes.get(sandbox.id))).code, "wrong_tenant");
    await rejected(PermissionDenied, client.keys.list().all());
    process.env["WAKEFUL_API_KEY"] = key;
    try {
      assert.equal((await new Client({ url: stage.url }).info()).tenant, "one");
    } finally {
      delete process.env["WAKEFUL_API_KEY"];
    }
    await sandbox.destroy();
  });
};
