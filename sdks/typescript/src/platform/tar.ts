// A directory as a tar: what a template is built from.
import { createReadStream } from "node:fs";
import { lstat, readdir, readlink } from "node:fs/promises";
import { join } from "node:path";

const BLOCK = 512;
const encoder = new TextEncoder();

function padded(length: number): number {
  return Math.ceil(length / BLOCK) * BLOCK;
}

/** `length key=value\n`, where the length counts itself. */
function record(key: string, value: string): Uint8Array {
  const rest = encoder.encode(` ${key}=${value}\n`).length;
  let length = rest + String(rest).length;
  while (rest + String(length).length !== length) length = rest + String(length).length;
  return encoder.encode(`${length} ${key}=${value}\n`);
}

interface Entry {
  readonly name: string;
  readonly type: "0" | "2" | "5" | "x";
  readonly mode: number;
  readonly owner: readonly [number, number];
  readonly size: number;
  readonly modified: number;
  readonly link: string;
}

function header(entry: Entry): Uint8Array {
  const block = new Uint8Array(BLOCK);
  const text = (value: string, at: number, length: number): void => {
    block.set(encoder.encode(value).subarray(0, length), at);
  };
  const octal = (value: number, at: number, length: number): void => {
    const most = 8 ** (length - 1) - 1;
    text(`${Math.min(value, most).toString(8).padStart(length - 1, "0")}\0`, at, length);
  };
  text(entry.name, 0, 100);
  octal(entry.mode & 0o7777, 100, 8);
  octal(entry.owner[0], 108, 8);
  octal(entry.owner[1], 116, 8);
  octal(entry.size, 124, 12);
  octal(Math.max(0, Math.floor(entry.modified)), 136, 12);
  text("        ", 148, 8);
  text(entry.type, 156, 1);
  text(entry.link, 157, 100);
  text("ustar\x0000", 257, 8);
  let sum = 0;
  for (const byte of block) sum += byte;
  text(`${sum.toString(8).padStart(6, "0")}\0 `, 148, 8);
  return block;
}

/** The header, and before it one with what it has no room for. */
function* headers(entry: Entry): Generator<Uint8Array> {
  const records: Uint8Array[] = [];
  if (encoder.encode(entry.name).length > 100) records.push(record("path", entry.name));
  if (encoder.encode(entry.link).length > 100) records.push(record("linkpath", entry.link));
  if (entry.size >= 8 ** 11) records.push(record("size", String(entry.size)));
  if (records.length > 0) {
    const size = records.reduce((sum, piece) => sum + piece.length, 0);
    yield header({ ...entry, name: "pax", type: "x", size, link: "" });
    const body = new Uint8Array(padded(size));
    let at = 0;
    for (const piece of records) {
      body.set(piece, at);
      at += piece.length;
    }
    yield body;
  }
  yield header(entry);
}

async function* walk(root: string, below: string): AsyncGenerator<Uint8Array> {
  const names = (await readdir(join(root, below))).sort();
  for (const name of names) {
    const relative = below === "" ? name : `${below}/${name}`;
    const path = join(root, relative);
    const found = await lstat(path);
    const common = { mode: found.mode, owner: [found.uid, found.gid] as const, modified: found.mtimeMs / 1000 };
    if (found.isDirectory()) {
      yield* headers({ ...common, name: `${relative}/`, type: "5", size: 0, link: "" });
      yield* walk(root, relative);
    } else if (found.isSymbolicLink()) {
      yield* headers({ ...common, name: relative, type: "2", size: 0, link: await readlink(path) });
    } else if (found.isFile()) {
      yield* headers({ ...common, name: relative, type: "0", size: found.size, link: "" });
      let sent = 0;
      // No more than was announced, should it have grown.
      if (found.size > 0) {
        for await (const piece of createReadStream(path, { end: found.size - 1 })) {
          sent += (piece as Uint8Array).length;
          yield piece as Uint8Array;
        }
      }
      if (sent !== found.size) throw new Error(`${path} changed while it was read`);
      if (padded(sent) > sent) yield new Uint8Array(padded(sent) - sent);
    }
  }
}

/** Files, directories and symbolic links below a directory; nothing else. */
export function pack(root: string): ReadableStream<Uint8Array> {
  const pieces = walk(root, "");
  let ended = false;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller): Promise<void> {
        const { done, value } = await pieces.next();
        if (!done) return controller.enqueue(value);
        if (!ended) controller.enqueue(new Uint8Array(2 * BLOCK));
        ended = true;
        controller.close();
      },
      async cancel(): Promise<void> {
        await pieces.return(undefined);
      },
    },
    { highWaterMark: 0 },
  );
}
