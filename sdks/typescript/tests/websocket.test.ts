// The WebSocket client on what a server may send and ours does not: pieces, pings in between, refusals, ends.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { ConnectionFailed, ProtocolError } from "wakeful";
import { root } from "./stage.js";
import { until } from "./support.js";

const { connect } = (await import(
  join(root, "dist/esm/platform/websocket.js")
)) as typeof import("../dist/esm/platform/websocket.js");

/** A frame of a server, not masked. */
function frame(first: number, payload: Uint8Array | string): Buffer {
  const body = Buffer.from(payload);
  const head = Buffer.alloc(body.length < 126 ? 2 : body.length < 65_536 ? 4 : 10);
  head[0] = first;
  if (head.length === 2) head[1] = body.length;
  else if (head.length === 4) {
    head[1] = 126;
    head.writeUInt16BE(body.length, 2);
  } else {
    head[1] = 127;
    head.writeBigUInt64BE(BigInt(body.length), 2);
  }
  return Buffer.concat([head, body]);
}

interface Site {
  readonly url: URL;
  readonly got: Buffer[];
}

/** A server that answers a handshake, then with whatever is wanted. */
async function serve(work: (site: Site) => Promise<void>, answer: (socket: Socket, accept: string) => void): Promise<void> {
  const got: Buffer[] = [];
  const server: Server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.once("data", (head: Buffer) => {
      const key = /sec-websocket-key: (.*)\r\n/i.exec(head.toString())?.[1] ?? "";
      socket.on("data", (data: Buffer) => got.push(data));
      answer(socket, createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64"));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await work({ url: new URL(`ws://127.0.0.1:${(server.address() as AddressInfo).port}/x?y=1`), got });
  } finally {
    server.close();
  }
}

const head = (accept: string): string =>
  `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`;
const never = new AbortController().signal;

test("messages of all lengths, in pieces of all lengths", async () => {
  const messages = [0, 1, 125, 126, 65_535, 65_536, 200_000].map((length) => Buffer.alloc(length, length % 251));
  const bytes = Buffer.concat(messages.map((message) => frame(0x82, message)));
  await serve(
    async ({ url }) => {
      const socket = await connect(url, { "x-own": "1" }, never);
      for (const message of messages) assert.ok(message.equals((await socket.receive()) as Uint8Array), String(message.length));
      socket.close();
    },
    (socket, accept) => {
      // The first frame comes with the handshake's answer.
      const all = Buffer.concat([Buffer.from(head(accept)), bytes]);
      for (let at = 0; at < all.length; at += 9973) socket.write(all.subarray(at, at + 9973));
    },
  );
});

test("a message in parts, with a ping in between", async () => {
  await serve(
    async ({ url, got }) => {
      const socket = await connect(url, {}, never);
      assert.equal(await socket.receive(), "héllo");
      assert.equal(await socket.receive(), undefined);
      await assert.rejects(socket.send("late"), ConnectionFailed);
      await until("the ping is answered", () => got.length > 0);
      const [pong] = got;
      assert.deepEqual([pong?.[0], pong?.[1]], [0x8a, 0x80 | 4]);
      socket.close();
    },
    (socket, accept) => {
      const text = Buffer.from("héllo");
      socket.write(head(accept));
      socket.write(frame(0x01, text.subarray(0, 2)));
      socket.write(frame(0x89, "ping"));
      socket.write(frame(0x80, text.subarray(2)));
      socket.write(frame(0x88, Buffer.from([0x03, 0xe8])));
    },
  );
});

test("what is sent is masked and whole", async () => {
  await serve(
    async ({ url, got }) => {
      const socket = await connect(url, {}, never);
      await socket.send(new Uint8Array(70_000).fill(7));
      await socket.receive();
      const all = Buffer.concat(got);
      assert.deepEqual([all[0], all[1], Number(all.readBigUInt64BE(2))], [0x82, 0xff, 70_000]);
      const mask = all.subarray(10, 14);
      assert.ok(all.subarray(14, 70_014).every((byte, index) => (byte ^ (mask[index & 3] ?? 0)) === 7));
      socket.close();
    },
    (socket, accept) => {
      socket.write(head(accept));
      let seen = 0;
      socket.on("data", (data: Buffer) => {
        seen += data.length;
        if (seen === 70_014) socket.write(frame(0x81, "all"));
      });
    },
  );
});

test("refusals are told with their body", async () => {
  for (const length of ["content-length: 5\r\n", ""]) {
    await serve(
      async ({ url }) => {
        const error = await connect(url, {}, never).catch((caught: unknown) => caught);
        assert.deepEqual({ ...(error as object) }, { status: 404, body: "there" });
      },
      (socket) => socket.end(`HTTP/1.1 404 Not Found\r\n${length}\r\nthere`),
    );
  }
});

test("ends that are none are errors", async () => {
  const ends: [new (...args: never[]) => Error, (socket: Socket) => unknown][] = [
    [ConnectionFailed, (socket) => socket.destroy()],
    [ConnectionFailed, (socket) => socket.end(frame(0x82, "x").subarray(0, 2))],
    [ConnectionFailed, (socket) => socket.write(frame(0x88, Buffer.from([0x03, 0xf3])))],
    [ProtocolError, (socket) => socket.write(frame(0x83, "x"))],
    [ProtocolError, (socket) => socket.write(Buffer.from([0x82, 0x81, 1, 2, 3, 4, 5]))],
    [ProtocolError, (socket) => socket.write(Buffer.from([0x82, 127, 0, 0, 1, 0, 0, 0, 0, 0]))],
  ];
  for (const [type, end] of ends) {
    await serve(
      async ({ url }) => {
        const socket = await connect(url, {}, never);
        await assert.rejects(socket.receive(), type);
        socket.close();
      },
      (socket, accept) => socket.write(head(accept), () => end(socket)),
    );
  }
  await serve(
    async ({ url }) => {
      await assert.rejects(connect(url, {}, never), ProtocolError);
      const reason = new Error("enough");
      await assert.rejects(connect(url, {}, AbortSignal.abort(reason)), reason);
    },
    (socket) => socket.write(head("of another")),
  );
});

test("a slow reader stops the sender", async () => {
  const piece = frame(0x82, new Uint8Array(64 << 10));
  let sent = 0;
  await serve(
    async ({ url }) => {
      const socket = await connect(url, {}, never);
      await socket.receive();
      let before = -1;
      // It stands still when what lies in between is full.
      while (sent !== before) {
        before = sent;
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
      assert.ok(sent < 1000, `${sent} were sent`);
      for (let got = 1; got < 1000; got++) assert.equal((await socket.receive())?.length, 64 << 10);
      socket.close();
    },
    (socket, accept) => {
      socket.write(head(accept));
      const more = (): void => {
        while (sent < 1000) {
          sent++;
          if (!socket.write(piece)) return void socket.once("drain", more);
        }
      };
      more();
    },
  );
});
