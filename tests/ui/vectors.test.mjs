// The vectors: `node --test tests/ui`.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import * as ui from "../../src/whyloop/ui/index.js";

const folder = new URL("vectors/", import.meta.url);
const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

for (const file of readdirSync(folder)) {
  const name = file.replace(".json", "");
  for (const vector of JSON.parse(readFileSync(new URL(file, folder), "utf8"))) {
    test(`${name}: ${vector.name}`, () => {
      const got =
        name === "reduce"
          ? vector.envelopes.reduce(ui.reduce, vector.messages)
          : ui[camelCase(name)](...vector.arguments);
      assert.deepEqual(JSON.parse(JSON.stringify(got)), vector.expected);
    });
  }
}
