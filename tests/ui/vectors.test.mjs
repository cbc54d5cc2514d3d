// The vectors, for the JavaScript implementation alone: `node --test tests/ui`.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import * as ui from "../../src/whyloop/ui/index.js";

const folder = new URL("vectors/", import.meta.url);
const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

function reduced({ messages, envelopes, in_order: inOrder = [] }) {
  const fold = (latest, envelope) => ui.reduce(latest, envelope, { inOrder: true });
  return inOrder.reduce(fold, envelopes.reduce(ui.reduce, messages));
}

for (const file of readdirSync(folder)) {
  const name = file.replace(".json", "");
  for (const vector of JSON.parse(readFileSync(new URL(file, folder), "utf8"))) {
    test(`${name}: ${vector.name}`, () => {
      const got =
        name === "reduce"
          ? reduced(vector)
          : ui[camelCase(name)](...vector.arguments);
      assert.deepEqual(JSON.parse(JSON.stringify(got)), vector.expected);
    });
  }
}
