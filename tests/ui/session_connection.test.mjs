// The live view of a session when its connection is lost, cannot be opened or is closed.
import assert from "node:assert/strict";
import { test } from "node:test";

import { followSession } from "../../src/whyloop/ui/session.js";
import { World, answer, chunk, connected, ended, inProgress, question, settled, started } from "./world.mjs";

test("the first history is requested until it arrives, less and less often", async () => {
  const world = new World();
  for (let attempt = 0; attempt < 8; attempt += 1) {
    await world.lose();
    const longest = Math.min(1000 * 2 ** attempt, 30_000);
    assert.ok(world.timers[attempt].wait >= longest / 2 && world.timers[attempt].wait <= longest);
    world.wait();
  }
  assert.equal(world.sources.length, 0);
  await world.history([question("Who?")]);
  assert.deepEqual(world.texts, ["Who?"]);
  world.sources[0].onopen({});
  world.cut(2);
  assert.ok(world.timers.at(-1).wait <= 1000, "a connection that was open resets the wait");
});

test("an answer that is not a history is requested again", async () => {
  const world = new World();
  for (const odd of [{}, { messages: "none" }, { messages: [null] }, [], null]) {
    world.requests.at(-1).resolve({ ok: true, json: async () => odd });
    await settled();
    world.wait();
  }
  assert.equal(world.errors.length, 5);
  await world.history([question("Who?")]);
  assert.deepEqual(world.texts, ["Who?"]);
});

test("a connection that the browser opens again is left to it", async () => {
  const world = await connected();
  world.receive(started(1), chunk("a"));
  world.cut(0);
  assert.deepEqual([world.requests.length, world.timers.length, world.errors.length], [2, 0, 0]);
  world.receive(ended(2));
  assert.deepEqual(world.texts, ["a…"]);
});

test("a connection that is closed is replaced after a while, beginning with the history", async () => {
  const world = await connected([question("Who?")], "1");
  world.receive(started(1), chunk("Half"));
  world.cut(2);
  assert.deepEqual(world.errors, ["The connection was closed"]);
  assert.deepEqual(world.texts, ["Who?", "Half"], "the messages stay until then");
  assert.equal(world.requests.length, 2);
  world.wait();
  await world.history([question("Who?"), inProgress("e1", "Thinking…", 7)], "e1:7");
  assert.deepEqual(world.texts, ["Who?", "Thinking…"], "the history is ahead of the text");
  assert.equal(world.sources[1].address, "/agents/sessions/a%201/events?after=e1%3A7");
  world.receive(chunk("rest", 6, "e1", 7));
  assert.deepEqual(world.texts, ["Who?", "…rest"]);
  world.sources[0].onmessage({ data: JSON.stringify(chunk("!", 7, "e1", 7)) });
  world.sources[0].onerror({});
  assert.deepEqual(world.texts, ["Who?", "…rest"], "the old connection is ignored");
});

test("a connection that is closed each time is tried less and less often", async () => {
  const world = await connected();
  for (let attempt = 0; attempt < 4; attempt += 1) {
    world.cut(2);
    assert.ok(world.timers[attempt].wait >= 500 * 2 ** attempt);
    world.wait();
    await world.history([]);
  }
  assert.equal(world.sources.length, 5);
});

test("a connection that is closed while the history is loading is opened once", async () => {
  const world = await connected();
  world.receive(started(1), ended(2));
  world.cut(2);
  await world.history([answer("First.")], null, 1);
  assert.equal(world.sources.length, 1);
  world.wait();
  await world.history([answer("First.")]);
  assert.equal(world.sources.length, 2);
  assert.deepEqual(world.texts, ["First."]);
});

test("after close nothing is received, requested or shown", async () => {
  const world = await connected();
  world.receive(started(1), ended(2));
  const seen = world.seen.length;
  world.session.close();
  assert.equal(world.sources[0].readyState, 2);
  assert.equal(world.requests[2].init.signal.aborted, true);
  await world.history([answer("First.")]);
  world.receive(started(1, "e2"));
  world.cut(2);
  await world.session.refresh();
  world.session.close();
  assert.deepEqual([world.seen.length, world.requests.length, world.timers.length], [seen, 3, 0]);
});

test("after close nothing is tried again", async () => {
  const world = new World();
  await world.lose();
  world.session.close();
  world.wait();
  assert.equal(world.requests.length, 1);
});

test("the error handler may close the view", async () => {
  let world;
  const onError = () => world.session.close();
  world = new World({ onError });
  await world.lose();
  world.wait();
  assert.equal(world.requests.length, 1);
});

test("without fetch or EventSource it throws at once", () => {
  const given = { fetch: () => assert.fail("it was called"), EventSource: class {} };
  for (const name of Object.keys(given)) {
    const options = { ...given, [name]: null };
    const message = new RegExp(`There is no ${name} here: pass one, followSession\\(.*${name} }\\)`);
    assert.throws(() => followSession("/s", () => {}, options), { name: "TypeError", message });
  }
});

test("a connection that cannot be opened is an error, and is tried again", async () => {
  const world = new World({
    EventSource: class {
      constructor() {
        throw new SyntaxError("no address");
      }
    },
  });
  await world.history([question("Who?")]);
  assert.deepEqual(world.errors, ["The connection could not be opened: no address"]);
  assert.deepEqual(world.texts, ["Who?"]);
  world.wait();
  assert.equal(world.requests.length, 2);
});

test("a server that is busy is asked again after the time that it names", async () => {
  const world = new World();
  const headers = new Headers({ "retry-after": "5" });
  world.requests[0].resolve({ ok: false, status: 503, headers });
  await settled();
  assert.ok(world.timers[0].wait >= 5000 && world.timers[0].wait <= 6000);
  world.wait();
  await world.history([question("Who?")]);
  assert.deepEqual(world.texts, ["Who?"]);
});
