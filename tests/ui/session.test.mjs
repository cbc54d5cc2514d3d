// The live view of a session: `node --test tests/ui`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { CALL, HOSTILE, WAITING, World, connected, settled } from "./world.mjs";
import { answer, chunk, ended, envelope, question, started } from "./world.mjs";

test("the history comes first, then what happens after it", async () => {
  const world = new World();
  assert.equal(world.sources.length, 0);
  await world.history([question("Who?")], "12 & more");
  assert.equal(world.requests[0].address, "/agents/sessions/a%201/messages");
  assert.equal(world.sources[0].address, "/agents/sessions/a%201/events?after=12%20%26%20more");
  world.hear(started(1), chunk(2, "Hel"), chunk(3, "lo", 1));
  assert.deepEqual(world.words, ["Who?", "Hello", ""]);
  assert.deepEqual(
    world.seen.map((messages) => messages.map(({ content }) => content)),
    [["Who?"], ["Who?", "Thinking…"], ["Who?", "Hel", ""], ["Who?", "Hello", ""]],
  );
});

test("a session of which nothing was told yet is heard from its beginning", async () => {
  const world = await connected([], null);
  assert.equal(world.sources[0].address, "/agents/sessions/a%201/events");
});

test("headers and cookies are sent where they are asked for", async () => {
  const world = new World({ headers: { "x-key": "1" }, withCredentials: true });
  await world.history([]);
  assert.equal(world.requests[0].init.credentials, "include");
  assert.equal(world.requests[0].init.cache, "no-store");
  assert.deepEqual(world.requests[0].init.headers, { "x-key": "1" });
  assert.equal(world.sources[0].init.withCredentials, true);
});

test("what is missing is not waited for, and is marked", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "a"), chunk(9, "b", 7));
  assert.deepEqual(world.words, ["a…b", ""]);
});

test("an envelope that comes twice changes nothing, and nobody is told", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "a"), chunk(2, "a"));
  assert.equal(world.seen.length, 3);
});

for (const status of ["completed", "stopped", "failed", "paused"]) {
  test(`the history takes the place of what was heard: ${status}`, async () => {
    const world = await connected([question("Who?")]);
    world.hear(started(1), chunk(2, "Me"), ended(3, status));
    assert.equal(world.requests.length, 2);
    await world.history([question("Who?"), answer("Me, in full.", "e1", status)]);
    assert.deepEqual(world.words, ["Who?", "Me, in full."]);
    assert.equal(world.sources.length, 1, "the line stays as it is");
  });
}

test("what happens while the history is on its way is not lost", async () => {
  const world = await connected([question("One?")]);
  world.hear(started(1), chunk(2, "First"), ended(3));
  world.view.add({ content: "Two?" });
  world.hear(started(1, "e2"), chunk(2, "Sec", 0, "e2"));
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Sec", ""]);
  world.hear(chunk(3, "ond", 1, "e2"));
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Second", ""]);
  world.hear(ended(4, "completed", "e2"));
  const stored = [question("One?"), answer("First."), question("Two?", 2), answer("Second.", "e2")];
  await world.history(stored);
  assert.deepEqual(world.view.messages, stored);
});

test("a call that waits for a person waits when the history has come", async () => {
  const world = await connected([question("Pay?")]);
  world.hear(started(1), envelope("tool.started", 2, CALL), ended(3, "paused"));
  await world.history(WAITING);
  assert.deepEqual(world.view.messages, WAITING);
});

test("a run that goes on while the history of its pause is on its way goes on", async () => {
  const world = await connected([question("Pay?")]);
  world.hear(started(1), envelope("tool.started", 2, CALL), ended(3, "paused"), started(4));
  world.hear(envelope("tool.completed", 5, { ...CALL, success: true, result_summary: "paid" }));
  await world.history(WAITING);
  assert.deepEqual(world.words, ["Pay?", "", "paid", "Thinking…"]);
});

test("a history in the middle of a run takes away neither what is said nor what is asked", async () => {
  const asked = { ...question("One?"), metadata: { execution_id: "e1" } };
  const world = await connected([asked]);
  world.hear(started(1), chunk(2, "Fir"));
  world.view.add({ content: "Two?" });
  world.view.refresh();
  await world.history([asked]);
  assert.deepEqual(world.words.sort(), ["", "Fir", "One?", "Two?"]);
});

test("a history that was asked for before the latest end counts no longer", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "First"), ended(3), started(1, "e2"), chunk(2, "Second", 0, "e2"));
  world.hear(ended(3, "completed", "e2"));
  assert.equal(world.requests[1].init.signal.aborted, true);
  await world.history([answer("First.")], null, 1);
  assert.deepEqual(world.words, ["First", "", "Second", ""]);
  await world.history([answer("First."), answer("Second.", "e2")], null, 2);
  assert.deepEqual(world.words, ["First.", "Second."]);
});

test("a history that is ahead of the envelopes is not changed by those that follow", async () => {
  const world = await connected([question("One?")]);
  world.hear(started(1), chunk(2, "Fir"));
  world.view.refresh();
  await world.history([question("One?"), answer("First.")]);
  world.hear(chunk(3, "st.", 1), ended(4));
  assert.deepEqual(world.words, ["One?", "First."]);
  assert.equal(world.seen.length, 4);
});

test("a history that cannot be loaded is asked for again, and nothing is lost meanwhile", async () => {
  const world = await connected([question("One?")]);
  world.hear(started(1), chunk(2, "First"), ended(3));
  await world.refuse(503);
  assert.deepEqual(world.errors, ["The history could not be loaded: the server answered 503"]);
  assert.deepEqual(world.words, ["One?", "First", ""]);
  world.view.add({ content: "Two?" });
  world.hear(started(1, "e2"), chunk(2, "Sec", 0, "e2"));
  world.wait();
  await world.lose();
  world.wait();
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Sec", ""]);
  assert.equal(world.requests.length, 4);
  world.cut(2);
  assert.ok(world.timers.at(-1).wait <= 1000, "what went well again begins anew");
});

test("nobody waits any longer for what has been asked for meanwhile", async () => {
  const world = await connected();
  world.hear(started(1), ended(2));
  await world.lose();
  world.hear(started(1, "e2"), ended(2, "completed", "e2"));
  world.wait();
  assert.equal(world.requests.length, 3);
});

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
  assert.deepEqual([world.requests.length, world.timers.length, world.errors.length], [1, 0, 0]);
  world.hear(ended(5));
  assert.deepEqual(world.words, ["a…", ""]);
});

test("a line that is closed is opened anew after a while, beginning with the history", async () => {
  const world = await connected([question("Who?")], "1");
  world.hear(started(1), chunk(2, "Half"));
  world.cut(2);
  assert.deepEqual(world.errors, ["The connection was closed"]);
  assert.deepEqual(world.words, ["Who?", "Half", ""], "what there is stays until then");
  assert.equal(world.requests.length, 1);
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

test("what the user sends is there at once, and is replaced by what is stored", async () => {
  const world = await connected();
  world.view.add({ content: "Who?" });
  world.view.add({ role: "status", content: "Not sent", metadata: { status_type: "error" } });
  const [sent, error] = world.view.messages;
  assert.equal(sent.role, "user");
  assert.match(sent.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  assert.notEqual(sent.id, error.id);
  const refreshed = world.view.refresh();
  await world.history([question("Who?")]);
  await refreshed;
  assert.deepEqual(world.words, ["Who?", "Not sent"]);
  assert.equal(world.view.messages[0].id, "a1:0");
});

test("what was added while the first history is on its way is not lost", async () => {
  const world = new World();
  world.view.add({ content: "Two?" });
  await world.history([]);
  assert.deepEqual(world.words, ["Two?"]);
});

test("once it is closed nothing is heard, asked for or shown", async () => {
  const world = await connected();
  world.hear(started(1), ended(2));
  const seen = world.seen.length;
  world.view.close();
  assert.equal(world.sources[0].readyState, 2);
  assert.equal(world.requests[1].init.signal.aborted, true);
  await world.history([answer("First.")]);
  world.hear(started(1, "e2"));
  world.cut(2);
  await world.view.refresh();
  world.view.close();
  assert.deepEqual([world.seen.length, world.requests.length, world.timers.length], [seen, 2, 0]);
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

test("hostile content is data", async () => {
  const world = await connected([question(HOSTILE)]);
  world.hear(started(1), chunk(2, HOSTILE));
  world.hear(null, 7, [], "text", { v: 1 }, { ...started(3), data: null }, { ...started(3), event: "toString" });
  assert.deepEqual(world.words, [HOSTILE, HOSTILE, ""]);
  world.sources[0].onmessage({ data: "{not json" });
  world.sources[0].onmessage({ data: '{"__proto__": {"polluted": true}}' });
  assert.equal({}.polluted, undefined);
  assert.equal(world.errors.length, 1);
  assert.match(world.errors[0], /^An envelope could not be read/);
  world.hear(chunk(3, "!", 1));
  assert.deepEqual(world.words, [HOSTILE, `${HOSTILE}!`, ""]);
});
