import assert from "node:assert/strict";
import { SuspendedDuringExec, WakefulError } from "wakeful";
import { base, persistent, rejected, shown, text, until, type Scenario } from "../support.js";

export const pty: Scenario = async (context) => {
  await using sandbox = await base(context);
  const shell = await sandbox.pty({ cols: 100, rows: 30 });
  await shell.write("stty size; id -un\n");
  assert.match(await shown(shell, "\r\nuser"), /30 100/);
  await shell.resize({ cols: 120, rows: 40 });
  await shell.write("stty size; echo si'ze'd\n");
  assert.match(await shown(shell, "sized"), /40 120/);
  await shell.write(new TextEncoder().encode("exit 6\n"));
  assert.equal((await shell.wait({ timeoutMs: 20_000 })).exitCode, 6);
  assert.equal(shell.exitCode, 6);
  await rejected(WakefulError, shell.write("more"));

  const trapped = await sandbox.pty({ command: "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done" });
  await shown(trapped, "ready");
  await trapped.signal("INT");
  let rest = "";
  for await (const piece of trapped) rest += text(piece);
  assert.match(rest, /caught/);
  assert.equal(trapped.exitCode, 3);

  const endless = await sandbox.pty({ command: "sleep 1000" });
  await endless.kill();
  assert.equal((await endless.wait()).signal, 9);

  // As much as a screen can take, both ways.
  const echo = await sandbox.pty({ command: "stty raw -echo; echo ready; head -c 300000 | md5sum" });
  await shown(echo, "ready");
  await echo.write(new Uint8Array(300_000).fill(97));
  assert.match(await shown(echo, " -"), /[0-9a-f]{32} {2}-/);
  await echo.wait();
};

export const pty_reattach: Scenario = async (context) => {
  await using sandbox = await persistent(context);
  const first = await sandbox.pty({ command: "echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo meanwhile; read line; echo got $line" });
  await shown(first, "before");
  const { pid, seq } = first;
  await first.detach();
  await rejected(WakefulError, first.wait());
  await sandbox.files.write("/tmp/go", "");
  {
    await using second = await sandbox.pty({ pid, from: seq });
    assert.equal(await shown(second, "meanwhile\r\n"), "meanwhile\r\n");
  }
  const third = await sandbox.pty({ pid });
  assert.match(await shown(third, "meanwhile"), /before/);
  // It is found again after a sleep too, and typing wakes its sandbox.
  let screen = "";
  const reading = (async () => {
    for await (const piece of third) screen += text(piece);
  })();
  await sandbox.suspend();
  await until("the terminal knows", () => third.asleep);
  await third.write("hello\n");
  await reading;
  assert.match(screen, /got hello/);
  assert.equal(third.exitCode, 0);

  const raising = await sandbox.pty({ command: "echo on; sleep 100", onSuspend: "raise" });
  await shown(raising, "on");
  const refused = rejected(SuspendedDuringExec, raising.wait());
  await sandbox.suspend();
  const error = await refused;
  assert.deepEqual([error.pid, error.seq], [raising.pid, raising.seq]);
  await until("it sleeps", async () => (await sandbox.refresh()).status === "suspended");
};
