import assert from "node:assert/strict";
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BuildFailed, TemplateNotFound, type BuildProgress } from "wakeful";
import { rejected, until, type Context, type Scenario } from "../support.js";

/** What a shell needs, from a sandbox: a build begins with nothing else here. */
const PROGRAMS = ["/usr/bin/dash", "/usr/bin/cat", "/usr/bin/sleep", "/usr/bin/wc"];
const LIBRARIES = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"];

const HEAD = "FROM scratch\nCOPY root/ /\n";

async function directory(context: Context, dockerfile: string): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  await writeFile(join(dir, "Dockerfile"), HEAD + dockerfile);
  await using sandbox = await context.client.sandboxes.create({ template: "base" });
  for (const path of [...PROGRAMS, ...LIBRARIES]) {
    const local = join(dir, "root", path.replace("/usr/bin/", "/bin/"));
    await sandbox.files.download(path, local);
    await chmod(local, 0o755);
  }
  await symlink("dash", join(dir, "root/bin/sh"));
  return dir;
}

const LONG = `${"long-".repeat(30)}name`;

export const templates: Scenario = async (context) => {
  const { templates, sandboxes } = context.client;
  const name = `app-${crypto.randomUUID().slice(0, 8)}`;
  const dir = await directory(
    context,
    "ARG COLOUR\nCOPY app/ /srv/app/\nRUN echo step said $COLOUR && echo $COLOUR > /srv/colour\nENV WHAT=built\nWORKDIR /srv/app\n",
  );
  const app = join(dir, "app");
  await mkdir(join(app, "sub"), { recursive: true });
  await writeFile(join(app, "sub", "tool"), "#!/bin/sh\necho tool\n");
  await chmod(join(app, "sub", "tool"), 0o755);
  await symlink("sub/tool", join(app, "link"));
  await writeFile(join(app, LONG), "x".repeat(700));
  try {
    const begun = await templates.create({
      name,
      source: { kind: "dockerfile", context: dir, buildArgs: { COLOUR: "green" } },
      tags: ["1"],
      description: "a test",
      env: { MORE: "yes" },
      defaultSize: "shared-cpu-1x",
    });
    assert.equal(begun.name, name);
    const progress: BuildProgress[] = [];
    const built = await templates.wait(name, { onProgress: (event) => progress.push(event), timeoutMs: 90_000 });
    assert.deepEqual([built.status, built.description, built.tags], ["ready", "a test", ["1"]]);
    assert.ok(progress.some(({ line }) => line?.includes("step said green")), JSON.stringify(progress.slice(-5)));
    assert.equal((await templates.get(`${name}:1`)).id, built.id);
    assert.ok((await templates.list().all()).some((template) => template.id === built.id));
    {
      await using sandbox = await sandboxes.create({ template: name });
      const { stdout } = await sandbox.exec(`./link; cat /srv/colour; echo $WHAT $MORE; wc -c < ${LONG}`);
      assert.equal(stdout, "tool\ngreen\nbuilt yes\n700\n");
    }
    const again = [];
    for await (const event of templates.logs(name)) again.push(event);
    assert.equal(again.filter((event) => event.type === "progress").length, progress.length);
    assert.deepEqual(again.at(-1), { type: "end", status: "ready", build_error: null });

    const other = await directory(context, "RUN echo other > /other\n");
    const sent = await context.client.upload(other);
    await rm(other, { recursive: true });
    assert.ok(sent.bytes > 0);
    await templates.rebuild(name, { upload: sent.id });
    await templates.wait(name, { timeoutMs: 90_000 });
    await using rebuilt = await sandboxes.create({ template: name });
    assert.equal(await rebuilt.files.readText("/other"), "other\n");
  } finally {
    await rm(dir, { recursive: true });
    await templates.delete(name);
  }
  const error = await rejected(TemplateNotFound, sandboxes.create({ template: name }));
  assert.deepEqual([error.status, error.code], [404, "template_not_found"]);
};

export const template_failure: Scenario = async (context) => {
  const { templates } = context.client;
  const name = `bad-${crypto.randomUUID().slice(0, 8)}`;
  const dir = await directory(context, "\nRUN echo about to fail && exit 3\n");
  await templates.create({ name, source: { kind: "dockerfile", context: dir } });
  const error = await rejected(BuildFailed, templates.wait(name, { timeoutMs: 90_000 }));
  assert.equal(error.line, 4);
  assert.ok(error.step !== "" && error.detail !== "");
  await templates.delete(name);
  await rm(dir, { recursive: true });

  const endless = await directory(context, "RUN echo begun && sleep 600\n");
  await templates.create({ name: `${name}-2`, source: { kind: "dockerfile", context: endless } });
  let begun = false;
  const waiting = rejected(
    BuildFailed,
    templates.wait(`${name}-2`, { onProgress: ({ line }) => (begun ||= line === "begun"), timeoutMs: 90_000 }),
  );
  await until("the step runs", () => begun, 60_000);
  await templates.cancel(`${name}-2`);
  assert.match((await waiting).detail, /cancel/i);
  await templates.delete(`${name}-2`);
  await rm(endless, { recursive: true });
};
