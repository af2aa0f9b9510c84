// The same package on other platforms: Bun, Deno, and a page in a real browser.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { Client } from "wakeful";
import { Origin } from "./origin.js";
import { Stage, root } from "./stage.js";

let stage: Stage;
let project: string;

before(async () => {
  stage = await Stage.start();
  project = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  await mkdir(join(project, "node_modules"));
  await symlink(root, join(project, "node_modules/wakeful"));
  await writeFile(join(project, "package.json"), JSON.stringify({ type: "module", dependencies: { wakeful: "*" } }));
  for (const name of ["smoke.mjs", "page.mjs"]) await cp(join(root, "tests/programs", name), join(project, name));
});

after(async () => {
  await rm(project, { recursive: true });
  assert.deepEqual(await stage.end(), []);
});

/** Runs a program in the project; what it said. */
async function run(program: string, args: string[]): Promise<string> {
  const env = { ...process.env, WAKEFUL_URL: stage.url, NO_COLOR: "1" };
  const child = spawn(program, args, { cwd: project, env, stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (piece: Buffer) => (said += piece.toString()));
  const code = await new Promise((resolve, reject) => child.once("error", reject).once("close", resolve));
  assert.equal(code, 0, said);
  return said;
}

/** One of the programs that `scripts/test` fetches. */
function fetched(...paths: string[]): string {
  const found = paths.map((path) => join(root, "build/runtimes/node_modules", path)).find((path) => existsSync(path));
  assert.ok(found, `none of ${paths.join(", ")} is there: run scripts/test`);
  return found;
}

test("Node", async () => assert.equal(await run(process.execPath, ["smoke.mjs"]), "ok\n"));

test("Bun", async () => {
  const bun = fetched("@oven/bun-linux-x64/bin/bun", "@oven/bun-linux-aarch64/bin/bun");
  assert.equal(await run(bun, ["smoke.mjs"]), "ok\n");
});

test("Deno", async () => {
  const deno = fetched("@deno/linux-x64-glibc/deno", "@deno/linux-arm64-glibc/deno");
  assert.equal(await run(deno, ["run", "-A", "--node-modules-dir=manual", "smoke.mjs"]), "ok\n");
});

async function bundle(): Promise<string> {
  const made = await build({
    entryPoints: [join(project, "page.mjs")],
    bundle: true,
    write: false,
    format: "esm",
    platform: "browser",
    target: "es2022",
  });
  return made.outputFiles[0]?.text ?? "";
}

test("a bundle for browsers has nothing of Node", async () => {
  const code = await bundle();
  assert.ok(code.length > 1000 && code.length < 150_000, String(code.length));
  assert.doesNotMatch(code, /["']node:|require\(/);
});

test("a page in a browser", { timeout: 90_000 }, async () => {
  const program = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
  assert.ok(existsSync(program), `${program} is not there: scripts/test installs it, or CHROMIUM names another`);
  const keyed = await Stage.start();
  const profile = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  try {
    const { key } = await new Client({ url: keyed.url }).keys.create("page");
    const code = await bundle();
    await using origin = await Origin.start(stage.url, {
      "/": { type: "text/html", body: '<!doctype html><script type="module" src="/page.js"></script>' },
      "/page.js": { type: "text/javascript", body: code },
      "/settings": { type: "application/json", body: JSON.stringify({ url: keyed.url, apiKey: key }) },
    });
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
    flags.push("--disable-background-networking", "--disable-component-update", "--disable-sync");
    const browser = spawn(program, [...flags, `--user-data-dir=${profile}`, origin.url], { stdio: "ignore" });
    const ended = new Promise<void>((resolve) => browser.once("close", () => resolve()));
    try {
      const early = ended.then(() => "the browser ended before the page did");
      assert.equal(await Promise.race([origin.result, early]), "ok");
    } finally {
      browser.kill();
      await ended;
    }
  } finally {
    await rm(profile, { recursive: true, maxRetries: 5 });
    assert.deepEqual(await keyed.end(), []);
  }
});
