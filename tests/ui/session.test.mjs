// The live view of a session: `node --test tests/ui`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { HOSTILE, PENDING, World, connected } from "./world.mjs";
import { answer, called, chunk, ended, question, returned, started } from "./world.mjs";

test("the history comes first, then the envelopes after it", async () => {
  const world = new World();
  assert.equal(world.sources.length, 0);
  await world.history([question("Who?")], "12 & more");
  assert.equal(world.requests[0].address, "/agents/sessions/a%201/messages");
  assert.equal(world.sources[0].address, "/agents/sessions/a%201/events?after=12%20%26%20more");
  world.receive(started(1), chunk("Hel"), chunk("lo", 1));
  assert.deepEqual(world.texts, ["Who?", "Hello"]);
  assert.deepEqual(
    world.seen.map((messages) => messages.map(({ content }) => content)),
    [["Who?"], ["Who?", "Thinking…"], ["Who?", "Hel"], ["Who?", "Hello"]],
  );
});

test("a session without envelopes is followed from its beginning", async () => {
  const world = await connected([], null);
  assert.equal(world.sources[0].address, "/agents/sessions/a%201/events");
});

test("headers and cookies are sent as the options say", async () => {
  const world = new World({ headers: { "x-key": "1" }, withCredentials: true });
  await world.history([]);
  assert.equal(world.requests[0].init.credentials, "include");
  assert.equal(world.requests[0].init.cache, "no-store");
  assert.deepEqual(world.requests[0].init.headers, { accept: "application/json", "x-key": "1" });
  assert.equal(world.sources[0].init.withCredentials, true);
});

test("a chunk that is missing is marked", async () => {
  const world = await connected();
  world.receive(started(1), chunk("a"), chunk("b", 7));
  assert.deepEqual(world.texts, ["a…b"]);
});

test("an envelope that arrives twice changes nothing, and nothing is drawn", async () => {
  const world = await connected();
  world.receive(started(1), chunk("a"), chunk("a"));
  assert.equal(world.seen.length, 3);
});

for (const status of ["completed", "stopped", "failed", "paused"]) {
  test(`the history replaces what was streamed: ${status}`, async () => {
    const world = await connected([question("Who?")]);
    world.receive(started(1), chunk("Me"));
    assert.equal(world.requests.length, 2);
    world.receive(ended(2, status));
    assert.equal(world.requests.length, 3);
    await world.history([question("Who?"), answer("Me, in full.", "e1", status)]);
    assert.deepEqual(world.texts, ["Who?", "Me, in full."]);
    assert.equal(world.sources.length, 1, "the connection stays");
  });
}

test("a question of another client is shown when its run has begun", async () => {
  const world = await connected([question("One?"), answer("First.")]);
  world.receive(started(1, "e2"));
  assert.deepEqual(world.texts, ["One?", "First.", "Thinking…"]);
  const asked = { ...question("Two?", 2), metadata: { execution_id: "e2" } };
  await world.history([question("One?"), answer("First."), asked]);
  assert.deepEqual(world.texts, ["One?", "First.", "Two?", "Thinking…"]);
  world.receive(chunk("Sec", 0, "e2"));
  assert.deepEqual(world.texts, ["One?", "First.", "Two?", "Sec"]);
  assert.equal(world.requests.length, 2, "the history is loaded when a run begins and when it ends");
});

test("text that arrived before its question stands after it", async () => {
  const world = await connected();
  world.receive(started(1), chunk("Fir"), chunk("st", 1));
  const asked = { ...question("One?"), metadata: { execution_id: "e1" } };
  await world.history([asked]);
  assert.deepEqual(world.texts, ["One?", "First"]);
});

test("the user's question is shown once when its run has begun", async () => {
  const world = await connected();
  world.session.add({ content: "One?" });
  world.receive(started(1), chunk("Fir"));
  await world.history([question("One?")]);
  assert.deepEqual(world.texts, ["One?", "Fir"]);
  assert.equal(world.session.view.messages[0].id, "a1:0");
});

test("a beginning that arrives twice loads the history once", async () => {
  const world = await connected();
  world.receive(started(1), chunk("a"), started(1));
  assert.equal(world.requests.length, 2);
});

test("a history that fails to load when a run begins is requested again", async () => {
  const world = await connected();
  world.receive(started(1), chunk("Fir"));
  await world.lose();
  world.receive(chunk("st", 1));
  assert.deepEqual(world.texts, ["First"]);
  world.wait();
  await world.history([question("One?")]);
  assert.deepEqual(world.texts, ["One?", "First"]);
});

test("envelopes that arrive while the history is loading are not lost", async () => {
  const world = await connected([question("One?")]);
  world.receive(started(1), chunk("First"), ended(2));
  world.session.add({ content: "Two?" });
  world.receive(started(1, "e2"), chunk("Sec", 0, "e2"));
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.texts, ["One?", "First.", "Two?", "Sec"]);
  world.receive(chunk("ond", 1, "e2"));
  assert.deepEqual(world.texts, ["One?", "First.", "Two?", "Second"]);
  world.receive(ended(2, "completed", "e2"));
  const stored = [question("One?"), answer("First."), question("Two?", 2), answer("Second.", "e2")];
  await world.history(stored);
  assert.deepEqual(world.session.view.messages, stored);
});

test("a call that waits for a person is shown by the history", async () => {
  const world = await connected([question("Pay?")]);
  world.receive(started(1), called(2), ended(3, "paused"));
  await world.history(PENDING);
  assert.deepEqual(world.session.view.messages, PENDING);
});

test("a run that continues while the history of its pause is loading continues", async () => {
  const world = await connected([question("Pay?")]);
  world.receive(started(1), called(2), ended(3, "paused"), started(4));
  world.receive(returned(5));
  await world.history(PENDING);
  assert.deepEqual(world.texts, ["Pay?", "", "paid", "Thinking…"]);
});

test("a history within a run removes neither streamed text nor questions", async () => {
  const asked = { ...question("One?"), metadata: { execution_id: "e1" } };
  const world = await connected([asked]);
  world.receive(started(1), chunk("Fir"));
  world.session.add({ content: "Two?" });
  world.session.refresh();
  await world.history([asked]);
  assert.deepEqual(world.texts.sort(), ["Fir", "One?", "Two?"]);
});

test("a history that was requested before the latest end is ignored", async () => {
  const world = await connected();
  world.receive(started(1), chunk("First"), ended(2), started(1, "e2"), chunk("Second", 0, "e2"));
  world.receive(ended(2, "completed", "e2"));
  assert.deepEqual(
    world.requests.map(({ init }) => init.signal.aborted),
    [true, true, true, true, false],
  );
  await world.history([answer("First.")], null, 2);
  assert.deepEqual(world.texts, ["First…", "Second…"]);
  await world.history([answer("First."), answer("Second.", "e2")]);
  assert.deepEqual(world.texts, ["First.", "Second."]);
});

test("a history that is ahead of the envelopes is not changed by them", async () => {
  const world = await connected([question("One?")]);
  world.receive(started(1), chunk("Fir"));
  world.session.refresh();
  await world.history([question("One?"), answer("First.")]);
  world.receive(chunk("st.", 1), ended(2));
  assert.deepEqual(world.texts, ["One?", "First."]);
  assert.equal(world.seen.length, 4);
});

test("a history that cannot be loaded is requested again, and nothing is lost meanwhile", async () => {
  const world = await connected([question("One?")]);
  world.receive(started(1), chunk("First"), ended(2));
  await world.refuse(503);
  assert.deepEqual(world.errors, ["The history could not be loaded: the server answered 503"]);
  assert.deepEqual(world.texts, ["One?", "First…"]);
  world.session.add({ content: "Two?" });
  world.wait();
  world.receive(started(1, "e2"), chunk("Sec", 0, "e2"));
  await world.lose();
  world.wait();
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.texts, ["One?", "First.", "Two?", "Sec"]);
  assert.equal(world.requests.length, 6);
  world.cut(2);
  assert.ok(world.timers.at(-1).wait <= 1000, "a success resets the wait");
});

test("a request that was made meanwhile ends the wait for the next one", async () => {
  const world = await connected();
  world.receive(started(1), ended(2));
  await world.lose();
  world.receive(started(1, "e2"), ended(2, "completed", "e2"));
  assert.equal(world.requests.length, 5);
  world.wait();
  assert.equal(world.requests.length, 5);
});

test("what the user sends is shown at once, and replaced by the stored message", async () => {
  const world = await connected();
  world.session.add({ content: "Who?" });
  world.session.add({ role: "status", content: "Not sent", metadata: { status_type: "error" } });
  const [sent, error] = world.session.view.messages;
  assert.equal(sent.role, "user");
  assert.match(sent.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  assert.notEqual(sent.id, error.id);
  const refreshed = world.session.refresh();
  await world.history([question("Who?")]);
  await refreshed;
  assert.deepEqual(world.texts, ["Who?", "Not sent"]);
  assert.equal(world.session.view.messages[0].id, "a1:0");
});

test("a message that could not be sent is removed, once", async () => {
  const world = await connected([question("One?")]);
  const remove = world.session.add({ content: "Two?" });
  world.session.add({ role: "status", content: "Not sent", metadata: { status_type: "error" } });
  world.session.refresh();
  await world.history([question("One?")]);
  remove();
  assert.deepEqual(world.texts, ["One?", "Not sent"]);
  const seen = world.seen.length;
  remove();
  assert.equal(world.seen.length, seen);
});

test("a message that was stored meanwhile is not removed", async () => {
  const world = await connected();
  const remove = world.session.add({ content: "Who?" });
  world.receive(started(1));
  await world.history([question("Who?")]);
  remove();
  assert.deepEqual(world.texts, ["Who?", "Thinking…"]);
});

test("a message that was added while the first history is loading is not lost", async () => {
  const world = new World();
  world.session.add({ content: "Two?" });
  await world.history([]);
  assert.deepEqual(world.texts, ["Two?"]);
});

test("messages that are the same in the next history are the same objects, and so is their list", async () => {
  const stored = () => [
    { ...question("One?"), metadata: { execution_id: "e1" } },
    answer("First."),
    { ...question("Two?", 2), metadata: { execution_id: "e2" } },
  ];
  const world = await connected([...stored(), answer("Sec", "e2")]);
  const { finished, messages } = world.session.view;
  assert.equal(finished.length, 2);
  world.session.refresh();
  await world.history([...stored(), answer("Second.", "e2")]);
  const latest = world.session.view;
  assert.equal(latest.finished, finished);
  assert.deepEqual(latest.messages.map((message, index) => message === messages[index]), [true, true, true, false]);
});

test("hostile content is data", async () => {
  const world = await connected([question(HOSTILE)]);
  world.receive(started(1), chunk(HOSTILE));
  world.receive(null, 7, [], "text", { v: 1 }, { ...started(2), data: null }, { ...started(2), event: "toString" });
  assert.deepEqual(world.texts, [HOSTILE, HOSTILE]);
  world.sources[0].onmessage({ data: "{not json" });
  world.sources[0].onmessage({ data: '{"__proto__": {"polluted": true}}' });
  assert.equal({}.polluted, undefined);
  assert.equal(world.errors.length, 1);
  assert.match(world.errors[0], /^An envelope could not be read/);
  world.receive(chunk("!", 1));
  assert.deepEqual(world.texts, [HOSTILE, `${HOSTILE}!`]);
});
