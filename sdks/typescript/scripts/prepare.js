// Runs when the package is installed: makes dist/. `npm install <this folder>` from another project links the folder and
// installs none of its tools, so the compiler is fetched first where it is missing.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));

function run(command, args) {
  // Options of the install that we are a part of, as --global or --omit, are none of ours.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^npm_config_(global|omit|include|only|production|prefix|local_prefix|location|workspaces?|save.*|dry_run|ignore_scripts|install_links|package_lock.*)$/i.test(name)),
  );
  delete env.NODE_ENV;
  delete env.INIT_CWD;
  const { status, error } = spawnSync(command, args, { cwd: root, env, stdio: ["ignore", 2, 2] });
  if (error) throw error;
  if (status !== 0) process.exit(status ?? 1);
}

function hasTools() {
  try {
    const require = createRequire(import.meta.url);
    require.resolve("typescript/bin/tsc");
    require.resolve("@types/node/package.json");
    return true;
  } catch {
    return false;
  }
}

if (!hasTools()) {
  const npm = process.env.npm_execpath;
  const install = ["ci", "--ignore-scripts", "--include=dev", "--no-audit", "--no-fund"];
  if (npm && /\.[cm]?js$/.test(npm)) run(process.execPath, [npm, ...install]);
  else run("npm", install);
}
run(process.execPath, ["scripts/build.js"]);
