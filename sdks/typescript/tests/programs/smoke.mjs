// A round through everything that depends on the platform. Runs on Node, Bun and Deno.
import { Client, PortNotOpen, Sandbox } from "wakeful";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

function check(holds, what) {
  if (!holds) throw new Error(what);
}

const client = new Client();
check((await client.health()).status === "ok", "health");
const sandbox = await Sandbox.create({ template: "python", client });
const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
try {
  const result = await sandbox.exec("echo out; echo err >&2; exit 3");
  check(result.exitCode === 3 && result.stdout === "out\n" && result.stderr === "err\n", "exec");
  let streamed = "";
  const stream = await sandbox.stream("echo a; sleep 0.1; printf '\\377'; exit 4");
  for await (const frame of stream) if (frame.type === "stdout") streamed += [...frame.data].join();
  check(streamed === "97,10255" && stream.exitCode === 4, `stream: ${streamed}`);

  const content = new Uint8Array(2_000_000).map((_, index) => index * 31);
  await writeFile(join(dir, "up"), content);
  await sandbox.files.upload(join(dir, "up"), "/tmp/up");
  await sandbox.files.download("/tmp/up", join(dir, "down"));
  check((await readFile(join(dir, "down"))).equals(content), "files");
  await sandbox.files.write("/tmp/streamed", new Blob([content]).stream());
  check((await sandbox.files.stat("/tmp/streamed")).size === content.length, "a stream");

  const pty = await sandbox.pty({ cols: 91, rows: 33 });
  await pty.write("stty size; exit 5\n");
  let screen = "";
  for await (const piece of pty) screen += new TextDecoder().decode(piece);
  check(screen.includes("33 91") && pty.exitCode === 5, `pty: ${screen}`);

  let refused;
  await sandbox.ports.connect(9).catch((error) => (refused = error));
  check(refused instanceof PortNotOpen, `a port that is closed: ${refused}`);
  await sandbox.processes.start(["python3", "-m", "http.server", "8000", "--directory", "/tmp"]);
  for (let open = false; !open; ) {
    open = await sandbox.ports.connect(8000).then((tunnel) => (tunnel.close(), true), () => false);
  }
  await sandbox.files.write("/tmp/page", "a page");
  const forward = await sandbox.ports.forward(8000);
  const page = await (await fetch(`http://${forward.address}/page`)).text();
  check(page === "a page", `forward: ${page}`);
  await forward.close();

  const controller = new AbortController();
  setTimeout(() => controller.abort(new Error("enough")), 100);
  let reason;
  await sandbox.exec("sleep 20", { signal: controller.signal }).catch((error) => (reason = error));
  check(reason?.message === "enough", `cancel: ${reason}`);
  await sandbox.suspend();
  await sandbox.wake();
  const types = [];
  for await (const event of sandbox.events()) types.push(event.type);
  check(types.join() === "created,suspend_started,suspended,wake_started,woken", types.join());
} finally {
  await sandbox.destroy();
  await rm(dir, { recursive: true });
}
console.log("ok");
