// What the live view of a session does when a line is lost, cannot be opened or is closed.
import assert from "node:assert/strict";
import { test } from "node:test";

import { followSession } from "../../src/whyloop/ui/session.js";
import { World, answer, chunk, connected, ended, question, settled, started } from "./world.mjs";

test("the first history is asked for until it is there, less and less often", async () => {
  const world = new World();
  for (let attempt = 0; attempt < 8; attempt += 1) {
    await world.lose();
    const longest = Math.min(1000 * 2 ** attempt, 30_000);
    assert.ok(world.timers[attempt].wait >= longest / 2 && world.timers[attempt].wait <= longest);
    world.wait();
  }
  assert.equal(world.sources.length, 0);
  await world.history([question("Who?")]);
  assert.deepEqual(world.words, ["Who?"]);
  world.sources[0].onopen({});
  world.cut(2);
  assert.ok(world.timers.at(-1).wait <= 1000, "a line that was there begins anew");
});

test("an answer that is no history is asked for again", async () => {
  const world = new World();
  for (const odd of [{}, { messages: "none" }, { messages: [null] }, [], null]) {
    world.requests.at(-1).resolve({ ok: true, json: async () => odd });
    await settled();
    world.wait();
  }
  assert.equal(world.errors.length, 5);
  await world.history([question("Who?")]);
  assert.deepEqual(world.words, ["Who?"]);
});

test("a line that the browser mends itself is left to it", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "a"));
  world.cut(0);
  assert.deepEqual([world.requests.length, world.timers.length, world.errors.length], [2, 0, 0]);
  world.hear(ended(5));
  assert.deepEqual(world.words, ["a…", ""]);
});

test("a line that is closed is opened anew after a while, beginning with the history", async () => {
  const world = await connected([question("Who?")], "1");
  world.hear(started(1), chunk(2, "Half"));
  world.cut(2);
  assert.deepEqual(world.errors, ["The connection was closed"]);
  assert.deepEqual(world.words, ["Who?", "Half", ""], "what there is stays until then");
  assert.equal(world.requests.length, 2);
  world.wait();
  await world.history([question("Who?")], "7");
  assert.equal(world.sources[1].address, "/agents/sessions/a%201/events?after=7");
  world.hear(chunk(8, "rest", 6));
  assert.deepEqual(world.words, ["Who?", "…rest", ""]);
  world.sources[0].onmessage({ data: JSON.stringify(chunk(9, "!", 7)) });
  world.sources[0].onerror({});
  assert.deepEqual(world.words, ["Who?", "…rest", ""], "the old line counts no longer");
});

test("a line that is closed each time is tried less and less often", async () => {
  const world = await connected();
  for (let attempt = 0; attempt < 4; attempt += 1) {
    world.cut(2);
    assert.ok(world.timers[attempt].wait >= 500 * 2 ** attempt);
    world.wait();
    await world.history([]);
  }
  assert.equal(world.sources.length, 5);
});

test("a line that is closed while the history is on its way is opened once", async () => {
  const world = await connected();
  world.hear(started(1), ended(2));
  world.cut(2);
  await world.history([answer("First.")], null, 1);
  assert.equal(world.sources.length, 1);
  world.wait();
  await world.history([answer("First.")]);
  assert.equal(world.sources.length, 2);
  assert.deepEqual(world.words, ["First."]);
});

test("once it is closed nothing is heard, asked for or shown", async () => {
  const world = await connected();
  world.hear(started(1), ended(2));
  const seen = world.seen.length;
  world.view.close();
  assert.equal(world.sources[0].readyState, 2);
  assert.equal(world.requests[2].init.signal.aborted, true);
  await world.history([answer("First.")]);
  world.hear(started(1, "e2"));
  world.cut(2);
  await world.view.refresh();
  world.view.close();
  assert.deepEqual([world.seen.length, world.requests.length, world.timers.length], [seen, 3, 0]);
});

test("once it is closed nobody waits to try again", async () => {
  const world = new World();
  await world.lose();
  world.view.close();
  world.wait();
  assert.equal(world.requests.length, 1);
});

test("whoever is told of an error may close it", async () => {
  let world;
  const onError = () => world.view.close();
  world = new World({ onError });
  await world.lose();
  world.wait();
  assert.equal(world.requests.length, 1);
});

test("without something to ask and to hear with it says so at once", () => {
  const given = { fetch: () => assert.fail("it is asked"), EventSource: class {} };
  for (const name of Object.keys(given)) {
    const options = { ...given, [name]: null };
    const words = new RegExp(`There is no ${name} here: give one, followSession\\(.*${name} }\\)`);
    assert.throws(() => followSession("/s", () => {}, options), { name: "TypeError", message: words });
  }
});

test("a line that cannot be opened is an error that is told, and is tried again", async () => {
  const world = new World({
    EventSource: class {
      constructor() {
        throw new SyntaxError("no address");
      }
    },
  });
  await world.history([question("Who?")]);
  assert.deepEqual(world.errors, ["The connection could not be opened: no address"]);
  assert.deepEqual(world.words, ["Who?"]);
  world.wait();
  assert.equal(world.requests.length, 2);
});
