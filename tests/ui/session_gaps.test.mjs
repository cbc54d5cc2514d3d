// The live view of a session when numbered envelopes are missing, and when a person decides.
import assert from "node:assert/strict";
import { test } from "node:test";

import { isRunning } from "../../src/whyloop/ui/index.js";
import { CALL, PENDING, connected, gaps } from "./world.mjs";
import { answer, called, chunk, ended, envelope, inProgress, question, returned, started } from "./world.mjs";

const LOADED = [question("Pay?"), inProgress()];
const completed = (seq) =>
  envelope("step.completed", seq, { step_number: 1, continuation: { should_continue: true } });

test("the envelopes after the last one are requested when one is missing", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(returned(3));
  assert.equal(world.requests.length, 2);
  assert.equal(world.requests[1].address, "/agents/sessions/a%201/events?after=e1%3A1");
  assert.equal(world.requests[1].init.headers.accept, "application/json");
  assert.deepEqual(world.texts, ["Pay?", "Thinking…"], "it waits for the missing one");
  await world.page([called(2), returned(3)], "e1:3");
  assert.deepEqual(world.texts, ["Pay?", "", "paid"]);
  assert.deepEqual(gaps(world), []);
  assert.equal(world.requests.length, 2);
});

test("envelopes that arrive during the request follow the missing one", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(returned(3), completed(4));
  assert.equal(world.requests.length, 2, "they are requested once");
  await world.page([called(2)], "e1:2");
  assert.deepEqual(world.texts, ["Pay?", "", "paid", "Thinking…"]);
});

test("chunks neither make a gap nor fill one", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(chunk("a"), chunk("c", 2), chunk("late", 0, "e1", 7));
  assert.equal(world.requests.length, 1);
  assert.deepEqual(world.texts, ["Pay?", "a…c"]);
});

test("all pages are requested", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(completed(4));
  await world.page([called(2)], "e1:2", true);
  assert.equal(world.requests[2].address, "/agents/sessions/a%201/events?after=e1%3A2");
  await world.page([returned(3), completed(4)], "e1:4");
  assert.deepEqual(world.texts, ["Pay?", "", "paid", "Thinking…"]);
  assert.equal(world.requests.length, 3);
});

test("the id of an execution is encoded in its place", async () => {
  const world = await connected([], null);
  world.receive(started(1, "a:b c"), ended(3, "pending", "a:b c"));
  const [, after] = world.requests.at(-1).address.split("?after=");
  assert.equal(decodeURIComponent(after), "a%3Ab%20c:1");
});

test("if envelopes are still missing the history is loaded", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(completed(4));
  await world.page([completed(4)], "e1:4");
  assert.equal(world.requests[2].address, "/agents/sessions/a%201/messages");
  await world.history([question("Pay?"), inProgress("e1", "Thinking…", 4)]);
  assert.deepEqual(gaps(world), []);
  assert.deepEqual(world.texts, ["Pay?", "Thinking…"]);
});

test("a request for envelopes that fails is followed by the history after a while", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(returned(3));
  await world.refuse(503);
  assert.deepEqual(world.errors, ["Envelopes could not be loaded: the server answered 503"]);
  world.wait();
  assert.equal(world.requests[2].address, "/agents/sessions/a%201/messages");
  await world.history([question("Pay?"), inProgress("e1", "Thinking…", 3)]);
  world.receive(completed(4));
  assert.deepEqual(gaps(world), []);
});

test("after close the missing envelopes are not applied", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(returned(3));
  const seen = world.seen.length;
  world.session.close();
  await world.page([called(2)], "e1:2", true);
  assert.deepEqual([world.seen.length, world.requests.length, world.errors.length], [seen, 2, 0]);
});

test("after close a request that fails is not tried again", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(returned(3));
  world.session.close();
  await world.lose();
  assert.deepEqual([world.timers.length, world.errors.length], [0, 0]);
});

test("the end of a run does not wait for missing envelopes", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(ended(5));
  assert.ok(!isRunning(world.session.view));
  await world.history([question("Pay?"), answer("Paid.")]);
  assert.deepEqual(world.texts, ["Pay?", "Paid."]);
});

const ASKED = { ...CALL, question_id: "q1", question: "pay?", args_summary: "amount: 7" };
const decided = (seq, verdict, reason = null) =>
  envelope("approval.decided", seq, { ...CALL, question_id: "q1", verdict, by: "ada", reason });

test("a question is shown with its id before the run pauses", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(envelope("approval.requested", 2, ASKED));
  assert.deepEqual(world.texts, ["Pay?", "", "pay?"]);
  assert.equal(world.session.view.messages[2].metadata.question_id, "q1");
});

test("a decision of another client is shown at once, and the session stays paused", async () => {
  const world = await connected(PENDING, "e1:3");
  world.receive(decided(4, "approved"));
  assert.deepEqual(world.texts, ["Pay?", "", "pay: approved by ada"]);
  assert.equal(world.session.view.messages[2].metadata.question_id, undefined);
  assert.ok(!isRunning(world.session.view));
  world.receive(started(5));
  assert.ok(isRunning(world.session.view));
});

test("a denial is shown with the result of its call", async () => {
  const world = await connected(PENDING, "e1:3");
  const result = { ...CALL, success: false, error: "denied by ada: no" };
  world.receive(decided(4, "denied", "no"), envelope("tool.completed", 5, result));
  assert.deepEqual(world.texts, ["Pay?", "", "denied by ada: no"]);
  assert.equal(world.session.view.messages[2].metadata.tool_error, "denied by ada: no");
  assert.ok(!isRunning(world.session.view));
});

test("a history that has a decision is not changed by its envelope", async () => {
  const world = await connected(PENDING, "e1:3");
  const [asked, call, pending] = PENDING;
  const metadata = { ...pending.metadata, status_type: "info", seq: 4, question_id: undefined };
  world.session.refresh();
  await world.history([asked, call, { ...pending, content: "pay: approved by bo", metadata }]);
  world.receive(decided(4, "approved"));
  assert.deepEqual(world.texts, ["Pay?", "", "pay: approved by bo"]);
});

test("envelopes are kept only until a history that is requested later has them", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(chunk("Let me"), called(2), returned(3), completed(4), chunk("The end", 0, "e1", 4));
  assert.deepEqual(world.texts, ["Pay?", "Let me…", "paid", "The end"]);
  world.session.refresh();
  // This server does not say which envelopes it has, so all that were kept are applied again.
  await world.history([question("Pay?"), inProgress("e1", "", 0)]);
  assert.deepEqual(world.texts, ["Pay?", "The end"]);
});

test("the history brings the text of a step that was not received whole, once the step has ended", async () => {
  const world = await connected(LOADED, "e1:1");
  world.receive(chunk("look.", 2));
  assert.deepEqual(world.texts, ["Pay?", "…look."]);
  world.receive(completed(2));
  assert.equal(world.requests.length, 2);
  const said = { ...answer("Let me look."), metadata: { execution_id: "e1", step_number: 1 } };
  const next = inProgress("e1", "Thinking…", 2);
  next.metadata.step_number = 2;
  await world.history([question("Pay?"), said, next], "e1:2");
  assert.deepEqual(world.texts, ["Pay?", "Let me look.", "Thinking…"]);
  assert.ok(isRunning(world.session.view));
});

test("a step whose text was received whole needs no history", async () => {
  const world = await connected(LOADED, "e1:1");
  const whole = chunk("Let me look.");
  whole.data.is_complete = true;
  world.receive(whole, completed(2));
  assert.equal(world.requests.length, 1);
  assert.deepEqual(world.texts, ["Pay?", "Let me look.", "Thinking…"]);
});
