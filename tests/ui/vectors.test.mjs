// The vectors: `node --test tests/ui`.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import * as ui from "../../src/whyloop/ui/index.js";

const folder = new URL("vectors/", import.meta.url);
const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const shown = ({ messages, runs }) => ({ messages, runs });

const compute = {
  reduce: ({ messages, envelopes }) => shown(envelopes.reduce(ui.reduce, ui.viewOf(messages))),
  reconcile: ({ arguments: [messages, history] }) => shown(ui.reconcile(ui.viewOf(messages), history)),
  is_running: ({ arguments: [messages] }) => ui.isRunning(ui.viewOf(messages)),
};

for (const file of readdirSync(folder)) {
  const name = file.replace(".json", "");
  for (const vector of JSON.parse(readFileSync(new URL(file, folder), "utf8"))) {
    test(`${name}: ${vector.name}`, () => {
      const got = compute[name]?.(vector) ?? ui[camelCase(name)](...vector.arguments);
      assert.deepEqual(JSON.parse(JSON.stringify(got)), vector.expected);
    });
  }
}
