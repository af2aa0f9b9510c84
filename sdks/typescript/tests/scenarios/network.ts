import assert from "node:assert/strict";
import { connect, type Socket } from "node:net";
import { request } from "node:http";
import { PortNotOpen, type Sandbox } from "wakeful";
import { rejected, text, until, type Context, type Scenario } from "../support.js";

/** Answers each connection with what it got, once the other side has ended its direction. */
const ECHO = `
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        data = b""
        while True:
            piece = self.request.recv(65536)
            if not piece: break
            data += piece
        self.request.sendall(b"got:" + data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("127.0.0.1", 7000), Echo).serve_forever()
`;

async function service(context: Context): Promise<Sandbox> {
  const sandbox = await context.client.sandboxes.create({ template: "python" });
  await sandbox.files.write("/srv/page/index.html", "a page", { user: "root" });
  await sandbox.files.write("/tmp/echo.py", ECHO);
  await sandbox.processes.start(["python3", "-m", "http.server", "8000", "--directory", "/srv/page"]);
  await sandbox.processes.start(["python3", "/tmp/echo.py"]);
  for (const port of [8000, 7000]) {
    await until(`port ${port} is open`, async () => {
      try {
        (await sandbox.ports.connect(port)).close();
        return true;
      } catch (error) {
        if (error instanceof PortNotOpen) return false;
        throw error;
      }
    });
  }
  return sandbox;
}

/** A preview by its host's name, which leads to the daemon itself. */
function visit(address: string, stageUrl: string, headers: Record<string, string> = {}): Promise<{ status: number; body: string; headers: Record<string, unknown> }> {
  const { host, pathname, search } = new URL(address);
  const { hostname, port } = new URL(stageUrl);
  return new Promise((resolve, reject) => {
    const call = request({ hostname, port, path: pathname + search, headers: { ...headers, host } }, (answer) => {
      let body = "";
      answer.on("data", (piece: Buffer) => (body += piece.toString()));
      answer.on("end", () => resolve({ status: answer.statusCode ?? 0, body, headers: answer.headers }));
    });
    call.on("error", reject);
    call.end();
  });
}

export const ports: Scenario = async (context) => {
  await using sandbox = await service(context);
  const url = await sandbox.url(8000);
  assert.match(url, new RegExp(`8000-${sandbox.id.slice(4)}`));
  assert.equal((await visit(url, context.stage.url)).body, "a page");
  assert.deepEqual(await sandbox.ports.list(), []);
  assert.deepEqual(await sandbox.ports.open(8000), { port: 8000, public: true, url });
  assert.equal((await sandbox.ports.get(8000)).public, true);
  assert.equal((await sandbox.ports.open(8000, { public: false })).public, false);
  assert.equal((await sandbox.ports.list()).length, 1);
  await sandbox.ports.close(8000);
  assert.deepEqual(await sandbox.ports.list(), []);
  const session = await sandbox.ports.session(8000);
  assert.ok(Date.parse(session.expires_at) > Date.now());
  const entered = await visit(session.url, context.stage.url);
  assert.ok(entered.status === 303 && String(entered.headers["set-cookie"]).includes("wakeful_preview"));
  const error = await rejected(PortNotOpen, sandbox.ports.connect(9));
  assert.deepEqual([error.status, error.code], [502, "port_not_open"]);
};

function dial(port: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true }, () => resolve(socket));
    socket.once("error", reject);
  });
}

async function rest(socket: Socket): Promise<string> {
  let all = "";
  for await (const piece of socket) all += String(piece);
  return all;
}

export const forward: Scenario = async (context) => {
  await using sandbox = await service(context);
  let port: number;
  let open: Socket;
  {
    await using forward = await sandbox.ports.forward(7000);
    port = forward.localPort;
    assert.equal(forward.address, `127.0.0.1:${port}`);
    // Several at once, each of which ends its own direction and still gets its answer.
    const answers = await Promise.all(
      ["one", "two", "x".repeat(500_000)].map(async (word) => {
        const socket = await dial(port);
        socket.end(word);
        return [word, await rest(socket)] as const;
      }),
    );
    for (const [word, answer] of answers) assert.ok(answer === `got:${word}`, word.slice(0, 10));
    open = await dial(port);
    open.on("error", () => undefined);
  }
  const ended = new Promise<void>((resolve) => open.once("close", () => resolve()));
  open.resume();
  open.end();
  await ended;
  await assert.rejects(dial(port), /ECONNREFUSED/);

  const page = await sandbox.ports.forward(8000, { localPort: port });
  assert.equal(page.localPort, port);
  assert.equal(await (await fetch(`http://${page.address}/`)).text(), "a page");
  await page.close();

  const errors: unknown[] = [];
  await using nothing = await sandbox.ports.forward(9, { onError: (error) => errors.push(error) });
  const refused = await dial(nothing.localPort);
  refused.on("error", () => undefined);
  refused.resume();
  await until("the connection is refused", () => errors.length > 0);
  await rejected(PortNotOpen, Promise.reject(errors[0]));

  await using tunnel = await sandbox.ports.connect(7000);
  const writer = tunnel.writable.getWriter();
  await writer.write(new TextEncoder().encode("by hand"));
  await writer.close();
  let all = "";
  for await (const piece of tunnel.readable) all += text(piece);
  assert.equal(all, "got:by hand");
};
