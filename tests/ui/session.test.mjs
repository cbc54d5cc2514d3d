// The live view of a session: `node --test tests/ui`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { CALL, HOSTILE, WAITING, World, connected } from "./world.mjs";
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
    world.hear(started(1), chunk(2, "Me"));
    assert.equal(world.requests.length, 2);
    world.hear(ended(3, status));
    assert.equal(world.requests.length, 3);
    await world.history([question("Who?"), answer("Me, in full.", "e1", status)]);
    assert.deepEqual(world.words, ["Who?", "Me, in full."]);
    assert.equal(world.sources.length, 1, "the line stays as it is");
  });
}

test("what somebody else has asked is there when its run has begun", async () => {
  const world = await connected([question("One?"), answer("First.")]);
  world.hear(started(1, "e2"));
  assert.deepEqual(world.words, ["One?", "First.", "Thinking…"]);
  const asked = { ...question("Two?", 2), metadata: { execution_id: "e2" } };
  await world.history([question("One?"), answer("First."), asked]);
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Thinking…"]);
  world.hear(chunk(2, "Sec", 0, "e2"));
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Sec", ""]);
  assert.equal(world.requests.length, 2, "a run is asked about when it begins and when it ends");
});

test("what a run has said before its question came stands after it", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "Fir"), chunk(3, "st", 1));
  const asked = { ...question("One?"), metadata: { execution_id: "e1" } };
  await world.history([asked]);
  assert.deepEqual(world.words, ["One?", "First", ""]);
});

test("what the user has asked is there once when its run has begun", async () => {
  const world = await connected();
  world.view.add({ content: "One?" });
  world.hear(started(1), chunk(2, "Fir"));
  await world.history([question("One?")]);
  assert.deepEqual(world.words, ["One?", "Fir", ""]);
  assert.equal(world.view.messages[0].id, "a1:0");
});

test("a beginning that comes twice is asked about once", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "a"), started(1));
  assert.equal(world.requests.length, 2);
});

test("a history that does not come when a run begins is asked for again", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "Fir"));
  await world.lose();
  world.hear(chunk(3, "st", 1));
  assert.deepEqual(world.words, ["First", ""]);
  world.wait();
  await world.history([question("One?")]);
  assert.deepEqual(world.words, ["One?", "First", ""]);
});

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
  assert.deepEqual(
    world.requests.map(({ init }) => init.signal.aborted),
    [true, true, true, true, false],
  );
  await world.history([answer("First.")], null, 2);
  assert.deepEqual(world.words, ["First", "", "Second", ""]);
  await world.history([answer("First."), answer("Second.", "e2")]);
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
  world.wait();
  world.hear(started(1, "e2"), chunk(2, "Sec", 0, "e2"));
  await world.lose();
  world.wait();
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.words, ["One?", "First.", "Two?", "Sec", ""]);
  assert.equal(world.requests.length, 6);
  world.cut(2);
  assert.ok(world.timers.at(-1).wait <= 1000, "what went well again begins anew");
});

test("nobody waits any longer for what has been asked for meanwhile", async () => {
  const world = await connected();
  world.hear(started(1), ended(2));
  await world.lose();
  world.hear(started(1, "e2"), ended(2, "completed", "e2"));
  assert.equal(world.requests.length, 5);
  world.wait();
  assert.equal(world.requests.length, 5);
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

test("what could not be sent is taken back, once", async () => {
  const world = await connected([question("One?")]);
  const takeBack = world.view.add({ content: "Two?" });
  world.view.add({ role: "status", content: "Not sent", metadata: { status_type: "error" } });
  world.view.refresh();
  await world.history([question("One?")]);
  takeBack();
  assert.deepEqual(world.words, ["One?", "Not sent"]);
  const seen = world.seen.length;
  takeBack();
  assert.equal(world.seen.length, seen);
});

test("what is stored meanwhile is not taken back", async () => {
  const world = await connected();
  const takeBack = world.view.add({ content: "Who?" });
  world.hear(started(1));
  await world.history([question("Who?")]);
  takeBack();
  assert.deepEqual(world.words, ["Who?", "Thinking…"]);
});

test("what was added while the first history is on its way is not lost", async () => {
  const world = new World();
  world.view.add({ content: "Two?" });
  await world.history([]);
  assert.deepEqual(world.words, ["Two?"]);
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
