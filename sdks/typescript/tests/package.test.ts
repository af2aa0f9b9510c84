// The package as such: what it is made of, and how others load it.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cp, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as wakeful from "wakeful";
import { root } from "./stage.js";

const compiler = createRequire(import.meta.url).resolve("typescript/bin/tsc");

function run(program: string, args: string[], cwd: string): string {
  const done = spawnSync(program, args, { cwd, encoding: "utf8", timeout: 120_000 });
  assert.equal(done.status, 0, `${program} ${args.join(" ")}\n${done.stdout}${done.stderr}`);
  return done.stdout;
}

test("wire types are those of openapi/wakeful.json", () => {
  run(process.execPath, ["scripts/generate.js", "--check"], root);
});

test("sources and tests have strict types", () => {
  run(process.execPath, [compiler, "-p", "tsconfig.json", "--noEmit"], root);
});

test("there are no dependencies, and the lock file names no host", () => {
  const { dependencies, peerDependencies, optionalDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as Record<string, unknown>;
  assert.deepEqual([dependencies, peerDependencies, optionalDependencies], [undefined, undefined, undefined]);
  const lock = readFileSync(join(root, "package-lock.json"), "utf8");
  assert.doesNotMatch(lock, /"resolved"|registry\./);
});

test("version and agent are the same", () => {
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };
  assert.ok(readFileSync(join(root, "src/platform/node.ts"), "utf8").includes(`wakeful-typescript/${version}"`));
});

test("as an ES module and by require it is the same", () => {
  const required = createRequire(import.meta.url)("wakeful") as Record<string, unknown>;
  assert.deepEqual(Object.keys(required).sort(), Object.keys(wakeful).sort());
});

/** What a user writes; every kind of project compiles it. */
const USER = `
import { Client, Sandbox, SandboxNotFound, type ExecResult, type SandboxInfo } from "wakeful";

export async function use(client: Client): Promise<ExecResult | SandboxInfo> {
  await using sandbox = await Sandbox.create({ template: "base", client, env: { A: "1" } });
  try {
    for await (const frame of await sandbox.stream("ls")) {
      if (frame.type === "stdout") frame.data.byteLength + frame.text.length;
      else if (frame.type === "exit") frame.exitCode.toFixed();
    }
    const status: "creating" | "running" | "suspended" | "failed" | "destroyed" = sandbox.status;
    if (status === "running") return await sandbox.exec(["ls"], { timeout: "1m", signal: AbortSignal.timeout(1000) });
  } catch (error) {
    if (error instanceof SandboxNotFound) error.hint?.toUpperCase();
  }
  // @ts-expect-error: there is no such option
  await sandbox.exec("ls", { cwd: "/" });
  return sandbox.info;
}
`;

test("a clean copy is installed and used by another project", { timeout: 180_000 }, async () => {
  const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  try {
    const clone = join(dir, "clone/sdks/typescript");
    const user = join(dir, "user");
    const left = new Set(["node_modules", "dist", "build"].map((name) => join(root, name)));
    await mkdir(join(dir, "clone/sdks"), { recursive: true });
    await cp(root, clone, { recursive: true, filter: (path) => !left.has(path) });
    await mkdir(user);
    await writeFile(join(user, "package.json"), JSON.stringify({ name: "user", private: true }));
    run("npm", ["install", "--no-audit", "--no-fund", clone], user);
    assert.equal(run(process.execPath, ["-p", 'typeof require("wakeful").Sandbox.create'], user), "function\n");
    const script = 'import { Sandbox } from "wakeful"; console.log(typeof Sandbox.create)';
    assert.equal(run(process.execPath, ["--input-type=module", "-e", script], user), "function\n");

    const options = { target: "ES2022", lib: ["ES2022", "ESNext.Disposable", "DOM", "DOM.AsyncIterable"], strict: true };
    const exact = { exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, noEmit: true, types: [] };
    for (const [name, module, moduleResolution, skipLibCheck] of [
      ["esm.mts", "Node16", "Node16", false],
      ["cjs.cts", "Node16", "Node16", false],
      ["bundled.ts", "ESNext", "Bundler", false],
      ["old.ts", "CommonJS", "Node10", false],
    ] as const) {
      await writeFile(join(user, name), USER);
      const compilerOptions = { ...options, ...exact, module, moduleResolution, skipLibCheck };
      await writeFile(join(user, "tsconfig.json"), JSON.stringify({ compilerOptions, files: [name] }));
      run(process.execPath, [compiler, "-p", "."], user);
    }
  } finally {
    await rm(dir, { recursive: true });
  }
});
