import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdtemp, open, readFile, rm, writeFile } from "node:fs/promises";
import { spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { InvalidRequest, PathNotFound } from "wakeful";
import { base, persistent, rejected, text, until, type Scenario } from "../support.js";
import { root } from "../stage.js";

export const files: Scenario = async (context) => {
  await using sandbox = await base(context);
  const { files } = sandbox;
  const written = await files.write("/home/user/deep/er/text", "héllo\n");
  assert.deepEqual([written.path, written.size, written.type], ["/home/user/deep/er/text", 7, "file"]);
  assert.equal(await files.readText("/home/user/deep/er/text"), "héllo\n");
  const bytes = Uint8Array.from({ length: 256 }, (_, index) => index);
  await files.write("/tmp/bytes", bytes, { mode: 0o750, user: "root" });
  assert.deepEqual(await files.read("/tmp/bytes"), bytes);
  const entry = await files.stat("/tmp/bytes");
  assert.deepEqual([entry.name, entry.size, entry.type, entry.mode, entry.owner], ["bytes", 256, "file", "0750", "root"]);
  await files.mkdir("/home/user/made", { user: "root" });
  assert.deepEqual(await files.stat("/home/user/made").then((e) => [e.type, e.owner]), ["directory", "root"]);
  for (const name of ["spa ce", "per%cent", "qu?estion", "ha#sh", "ünï", "a+b", ".hidden", "new\nline", "%2e%2e"]) {
    await files.write(`/home/user/odd/${name}`, name);
    assert.equal(await files.readText(`/home/user/odd/${name}`), name);
  }
  assert.equal((await files.list("/home/user/odd")).length, 9);
  await sandbox.exec("ln -s /etc/hostname /home/user/odd/link");
  const link = (await files.list("/home/user/odd")).find(({ name }) => name === "link");
  assert.deepEqual([link?.type, link?.target], ["symlink", "/etc/hostname"]);
  assert.equal((await files.move("/home/user/odd/a+b", "/home/user/moved")).name, "moved");
  assert.deepEqual([await files.exists("/home/user/odd/a+b"), await files.exists("/home/user/moved")], [false, true]);
  await files.remove("/home/user/odd");
  await files.remove("/home/user/odd");
  assert.ok((await files.list("/")).some(({ name }) => name === "home"));
  assert.equal((await rejected(PathNotFound, files.read("/nowhere"))).code, "path_not_found");
  assert.equal((await rejected(InvalidRequest, files.read("/tmp/../etc/passwd"))).code, "invalid_path");
  assert.equal((await rejected(InvalidRequest, files.read("/home"))).code, "is_directory");
};

export const files_stream: Scenario = async (context) => {
  await using sandbox = await base(context);
  const { files } = sandbox;
  const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  try {
    const content = Buffer.from(Array.from({ length: 300_000 }, (_, index) => (index * 7) & 0xff));
    const local = join(dir, "local");
    await writeFile(local, content);
    assert.equal((await files.upload(local, "/tmp/path")).size, content.length);
    assert.equal((await files.upload(pathToFileURL(local), "/tmp/url")).size, content.length);
    await files.upload(new Blob([content]), "/tmp/blob");
    await files.write("/tmp/iterable", createReadStream(local));
    await files.write("/tmp/web", new Blob([content]).stream());
    await files.write("/tmp/buffer", content.buffer.slice(content.byteOffset, content.byteOffset + content.length));
    for (const name of ["path", "url", "blob", "iterable", "web", "buffer"]) {
      const read = await files.read(`/tmp/${name}`);
      assert.ok(content.equals(read), name);
    }
    assert.deepEqual(Buffer.from(await files.read("/tmp/path", { start: 100, end: 110 })), content.subarray(100, 110));
    assert.deepEqual(Buffer.from(await files.read("/tmp/path", { start: 299_990 })), content.subarray(299_990));
    const gathered: Uint8Array[] = [];
    for await (const piece of await files.stream("/tmp/path")) gathered.push(piece);
    assert.ok(content.equals(Buffer.concat(gathered)));
    await files.download("/tmp/path", join(dir, "sub", "copy"));
    assert.ok(content.equals(await readFile(join(dir, "sub", "copy"))));
    const pieces: Uint8Array[] = [];
    await files.download("/tmp/path", new WritableStream({ write: (piece: Uint8Array) => void pieces.push(piece) }));
    assert.ok(content.equals(Buffer.concat(pieces)));
    // One that is given up leaves nothing.
    await rejected(PathNotFound, files.download("/nowhere", join(dir, "none")));
    const stream = await files.stream("/tmp/path");
    await stream.cancel();
    await files.write("/tmp/empty", "");
    assert.equal((await files.read("/tmp/empty")).length, 0);
  } finally {
    await rm(dir, { recursive: true });
  }
};

export const files_100mb: Scenario = async (context) => {
  await using sandbox = await base(context);
  const dir = await mkdtemp(join(tmpdir(), "wakeful-sdk-"));
  try {
    const size = 100 << 20;
    const local = join(dir, "large");
    const hash = createHash("sha256");
    const file = await open(local, "w");
    for (let at = 0; at < size; at += 1 << 20) {
      const piece = Buffer.alloc(1 << 20, at / (1 << 20));
      hash.update(piece);
      await file.write(piece);
    }
    await file.close();
    const digest = hash.digest("hex");
    // In a process of its own, whose memory is its own as well.
    const program = join(root, "build/tests/large.js");
    const child = spawn(process.execPath, [program, context.stage.url, sandbox.id, local], { stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    for await (const piece of child.stdout) said += String(piece);
    const told = JSON.parse(said) as { digest: string; inside: string; grownMb: number };
    assert.deepEqual([told.inside, told.digest], [digest, digest]);
    assert.ok(told.grownMb < 80, `${told.grownMb} MB more were needed`);
  } finally {
    await rm(dir, { recursive: true });
  }
};

export const files_watch: Scenario = async (context) => {
  await using sandbox = await persistent(context);
  await sandbox.files.mkdir("/home/user/watched/below");
  await using watch = await sandbox.files.watch("/home/user/watched", { recursive: true, timeoutMs: 60_000 });
  const seen: string[] = [];
  const reading = (async () => {
    for await (const change of watch) seen.push("path" in change ? `${change.type} ${change.path}` : change.type);
  })();
  reading.catch(() => undefined);
  await sandbox.files.write("/home/user/watched/a", "1");
  await until("a file is told", () => seen.includes("create /home/user/watched/a"));
  await sandbox.exec("echo x > below/b; chmod 600 below/b; mv below/b below/c; rm below/c", { workdir: "/home/user/watched" });
  await until("its end is told", () => seen.includes("remove /home/user/watched/below/c"));
  for (const type of ["create", "write", "chmod"]) assert.ok(seen.includes(`${type} /home/user/watched/below/b`), type);
  await sandbox.suspend();
  await sandbox.wake();
  await until("it watches again", () => seen.includes("overflow"));
  await sandbox.files.write("/home/user/watched/later", "1");
  await until("a later file is told", () => seen.includes("create /home/user/watched/later"));
  await watch.close();
  await reading.catch(() => undefined);

  const plain = await sandbox.files.watch("/home/user");
  await sandbox.files.write("/home/user/one", text(new Uint8Array()));
  const first = await plain.next();
  assert.ok(first && "path" in first && first.path.startsWith("/home/user/"));
  await plain.close();
};
