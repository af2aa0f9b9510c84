// A large file up and down, in a process that tells how much memory it needed.
import { createHash } from "node:crypto";
import { Client } from "wakeful";

const [, , url, id, local] = process.argv;
const client = new Client({ url });
const sandbox = await client.sandboxes.get(id ?? "");
await sandbox.files.write("/tmp/warm", "up");
await sandbox.files.read("/tmp/warm");
const before = process.resourceUsage().maxRSS;
await sandbox.files.upload(local ?? "", "/home/user/large");
const inside = (await sandbox.exec("sha256sum /home/user/large", { timeout: 60, check: true })).stdout.split(" ")[0];
const hash = createHash("sha256");
await sandbox.files.download("/home/user/large", `${local}.back`);
for await (const piece of await sandbox.files.stream("/home/user/large")) hash.update(piece);
const grownMb = Math.round((process.resourceUsage().maxRSS - before) / 1024);
console.log(JSON.stringify({ digest: hash.digest("hex"), inside, grownMb }));
