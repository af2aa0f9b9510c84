// Makes src/wire.ts of openapi/wakeful.json. With --check it only tells whether the file is as it would be made.
import { readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const source = new URL("../../../openapi/wakeful.json", import.meta.url);
const target = new URL("../src/wire.ts", import.meta.url);

const head = "// Made of openapi/wakeful.json by `npm run generate`; a test fails when the two differ.\n\n";
const document = JSON.parse(await readFile(source, "utf8"));
// The bodies are what is used here; the routes, with all of their refusals, would be six times as much.
const types = await openapiTS({ ...document, paths: {} }, { defaultNonNullable: false });
const text = head + astToString(types);
if (process.argv.includes("--check")) {
  const kept = await readFile(target, "utf8").catch(() => "");
  if (kept !== text) {
    console.error("src/wire.ts differs from openapi/wakeful.json: run `npm run generate`");
    process.exit(1);
  }
} else {
  await writeFile(target, text);
}
