// The examples of the README are run, one after the other, against a real daemon.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import ts from "typescript";
import { Stage, root } from "./stage.js";

const text = readFileSync(join(root, "README.md"), "utf8");
const examples = [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code]) => code ?? "");
const dir = join(root, "build/readme");
let stage: Stage;

before(async () => {
  await rm(dir, { recursive: true, force: true });
  await mkdir(dir, { recursive: true });
  stage = await Stage.start();
});

after(async () => assert.deepEqual(await stage.end(), []));

test("the quickstart has at most ten lines", () => {
  assert.ok(examples.length >= 8);
  assert.ok((examples[0] ?? "").trim().split("\n").length <= 10);
});

test("the examples have the types that they should", () => {
  const files = examples.map((code, index) => {
    const path = join(dir, `${index}.ts`);
    ts.sys.writeFile(path, code);
    return path;
  });
  const { config } = ts.readConfigFile(join(root, "tsconfig.json"), (path) => ts.sys.readFile(path)) as { config: object };
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, root);
  const program = ts.createProgram(files, { ...options, noUnusedLocals: false });
  const found = ts.getPreEmitDiagnostics(program).map(({ file, messageText }) => {
    return `${file?.fileName ?? ""}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`;
  });
  assert.deepEqual(found, []);
});

async function run(code: string, name: string): Promise<string> {
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
  const path = join(dir, `${name}.mjs`);
  await writeFile(path, ts.transpileModule(code, { compilerOptions }).outputText);
  const env = { ...process.env, WAKEFUL_URL: stage.url };
  const child = spawn(process.execPath, [path], { env, stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (piece: Buffer) => (said += piece.toString()));
  assert.equal(await new Promise((resolve) => child.once("close", resolve)), 0, said);
  return said;
}

/** What an example must have said, where that says something. */
const SAID: Readonly<Record<number, RegExp>> = {
  0: /^42\n/,
  1: /^blue\n\nsbx_[a-z2-7]{20} running\n$/,
  2: /^2 .*\n3\n1\n\n2\n\n3\n\n0\n0\nhello\n/s,
  3: /^hello false\ntoday.txt 5 0600\n10\n\{ type: '[a-z]+', path: '\/home\/user\/.*' \}\n$/,
  4: /30 100.*\n200\nhttp:\/\/8000-/s,
  5: /^kept\n\ntrue kept\n\n1 created api\n/,
  6: /ready\n$/,
  7: /^not there\n$/,
};

for (const [index, code] of examples.entries()) {
  test(`example ${index}: ${code.split("\n").find((line) => line.includes("await"))?.trim() ?? ""}`, { timeout: 60_000 }, async () => {
    assert.match(await run(code, String(index)), SAID[index] ?? /./s);
  });
}
