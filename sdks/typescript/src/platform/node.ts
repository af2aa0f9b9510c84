// Node, Bun and Deno: files, listeners, and WebSockets that carry a key.
import { createReadStream } from "node:fs";
import { mkdir, open, rename, rm, stat } from "node:fs/promises";
import { createServer, type Socket as TcpSocket } from "node:net";
import { dirname } from "node:path";
import { connect } from "./websocket.js";
import type { LocalConnection, LocalListener, LocalSink, LocalSource, Platform } from "./platform.js";
import { pack } from "./tar.js";
import { fromNode, toNode } from "./streams.js";

export { Refused } from "./platform.js";

export const platform: Platform = {
  headers: { "user-agent": "wakeful-typescript/0.1.0" },
  socketHeaders: true,
  streamingBodies: true,

  env(name) {
    try {
      return process.env[name] || undefined;
    } catch {
      // Deno, where reading the environment was not allowed.
      return undefined;
    }
  },

  connect,

  async source(path): Promise<LocalSource> {
    const found = await stat(path);
    if (found.isDirectory()) return { directory: true, size: undefined, open: () => pack(path) };
    return { directory: false, size: found.size, open: () => fromNode(createReadStream(path)) };
  },

  async sink(path): Promise<LocalSink> {
    await mkdir(dirname(path), { recursive: true });
    const beside = `${path}.${crypto.randomUUID()}.partial`;
    const file = await open(beside, "wx");
    return {
      async write(piece): Promise<void> {
        for (let at = 0; at < piece.length; ) at += (await file.write(piece, at, piece.length - at)).bytesWritten;
      },
      async commit(): Promise<void> {
        await file.close();
        await rename(beside, path);
      },
      async abort(): Promise<void> {
        await file.close().catch(() => undefined);
        await rm(beside, { force: true });
      },
    };
  },

  listen(host, port, accept): Promise<LocalListener> {
    const open = new Set<TcpSocket>();
    // The end of one direction is not that of the other.
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
      open.add(socket);
      socket.on("close", () => open.delete(socket));
      socket.on("error", () => socket.destroy());
      const connection: LocalConnection = {
        readable: fromNode(socket),
        writable: toNode(socket),
        destroy: () => socket.destroy(),
      };
      accept(connection);
    });
    return new Promise((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, host, () => {
        const address = server.address();
        const bound = address !== null && typeof address === "object" ? address : { address: host, port };
        resolve({
          host: bound.address,
          port: bound.port,
          close: () =>
            new Promise<void>((done) => {
              server.close(() => done());
              for (const socket of open) socket.destroy();
            }),
        });
      });
    });
  },
};
