// Walks the list that all SDKs walk, against a real daemon with real guests.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client } from "wakeful";
import { record, uncalled, unmet } from "./record.js";
import * as admin from "./scenarios/admin.js";
import * as commands from "./scenarios/commands.js";
import * as faults from "./scenarios/faults.js";
import * as files from "./scenarios/files.js";
import * as lifecycle from "./scenarios/lifecycle.js";
import * as network from "./scenarios/network.js";
import * as streams from "./scenarios/streams.js";
import * as templates from "./scenarios/templates.js";
import * as terminals from "./scenarios/terminals.js";
import { Stage, root } from "./stage.js";
import type { Scenario } from "./support.js";

const { withKeys: _, ...adminScenarios } = admin;
const scenarios = new Map<string, Scenario>(
  [adminScenarios, commands, faults, files, lifecycle, network, streams, templates, terminals].flatMap((module) =>
    Object.entries(module as Record<string, Scenario>),
  ),
);
const listed = JSON.parse(readFileSync(join(root, "../scenarios.json"), "utf8")) as { name: string; what: string }[];
/** For work on one of them: `SCENARIO=pty`. */
const only = process.env["SCENARIO"]?.split(",");

let stage: Stage;
let client: Client;
let ended = false;

before(async () => {
  record();
  stage = await Stage.start();
  client = new Client({ url: stage.url });
});

test("every scenario of the list is here, and no other", () => {
  assert.deepEqual([...scenarios.keys()].sort(), listed.map(({ name }) => name).sort());
});

for (const { name, what } of listed) {
  if (only && !only.includes(name)) continue;
  test(`${name}: ${what}`, { timeout: 120_000 }, async () => {
    const scenario = scenarios.get(name);
    assert.ok(scenario, `there is no scenario ${name}`);
    await scenario({ stage, client });
  });
}

if (!only) {
  test("every public method was called", () => assert.deepEqual(uncalled(), []));
  test("every type of error was met", () => assert.deepEqual(unmet(), []));
}

test("nothing is left", { timeout: 60_000 }, async () => {
  const ending = stage;
  ended = true;
  assert.deepEqual(await ending.end(), []);
});

after(async () => {
  if (!ended) await stage.end();
});
