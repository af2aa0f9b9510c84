// Makes dist/ of src/: as ES modules and as CommonJS, both with their types.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const compiler = createRequire(import.meta.url).resolve("typescript/bin/tsc");

rmSync(`${root}dist`, { recursive: true, force: true });
for (const [form, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
  const { status } = spawnSync(process.execPath, [compiler, "-p", `${root}tsconfig.${form}.json`], { stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
  // `#platform` is looked up beside the nearest package.json: each form has its own.
  const platform = { browser: "./platform/web.js", node: "./platform/node.js", default: "./platform/web.js" };
  const own = { type, sideEffects: ["./index.js", "./dispose.js"], imports: { "#platform": platform } };
  writeFileSync(`${root}dist/${form}/package.json`, `${JSON.stringify(own, null, 2)}\n`);
}
