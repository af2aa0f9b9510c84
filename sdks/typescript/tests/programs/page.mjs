// Runs in a page: once through a server of the page's own origin, once straight to a daemon that has keys.
import { Client, WakefulError } from "wakeful";

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function round(client) {
  const sandbox = await client.sandboxes.create({ template: "base", cpu: 1, memoryMb: 128 });
  try {
    check((await sandbox.exec("echo hello")).stdout === "hello\n", "exec");
    let streamed = "";
    for await (const frame of await sandbox.stream("echo a; sleep 0.1; echo b")) {
      if (frame.type === "stdout") streamed += frame.text;
    }
    check(streamed === "a\nb\n", "stream");
    await sandbox.files.write("/tmp/text", "héllo");
    check((await sandbox.files.readText("/tmp/text")) === "héllo", "files");
    await sandbox.files.write("/tmp/stream", new Blob(["from a stream"]).stream());
    const gathered = await new Response(await sandbox.files.stream("/tmp/stream")).text();
    check(gathered === "from a stream", "streams");
    const pty = await sandbox.pty({ cols: 91, rows: 33 });
    await pty.resize({ cols: 92, rows: 34 });
    await pty.write("stty size; exit 5\n");
    let screen = "";
    for await (const piece of pty) screen += new TextDecoder().decode(piece);
    check(screen.includes("34 92") && pty.exitCode === 5, `pty: ${screen}`);
    const types = [];
    for await (const event of sandbox.events()) types.push(event.type);
    check(types.join() === "created", types.join());
    let refused;
    await sandbox.files.upload("/a/local/path", "/tmp/x").catch((error) => (refused = error));
    check(refused instanceof WakefulError, "local paths are no part of a page");
    return sandbox;
  } catch (error) {
    await sandbox.destroy();
    throw error;
  }
}

async function run({ url, apiKey }) {
  const near = await round(new Client({ url: location.origin }));
  await near.processes.start("while :; do sleep 1; done");
  const error = await near.ports.connect(9).catch((caught) => caught);
  check(error instanceof WakefulError, "a port that is closed");
  await near.destroy();

  const far = await round(new Client({ url, apiKey }));
  const blocked = await far.ports.connect(80).catch((caught) => caught);
  check(blocked instanceof WakefulError && /cannot carry a key/.test(blocked.message), `a tunnel with a key: ${blocked}`);
  await far.destroy();
  return "ok";
}

const settings = await (await fetch("/settings")).json();
const result = await run(settings).catch((error) => `${error?.stack ?? error}`);
await fetch("/result", { method: "POST", body: result });
