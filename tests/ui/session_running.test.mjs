// The live view of a run that was in progress when it was loaded, and of one that was cut off.
import assert from "node:assert/strict";
import { test } from "node:test";

import { isRunning } from "../../src/whyloop/ui/index.js";
import { connected } from "./world.mjs";
import { answer, called, chunk, ended, inProgress, question, returned, started } from "./world.mjs";

test("a page that is loaded while a model thinks shows a run in progress", async () => {
  const world = await connected([question("One?"), inProgress()], "e1:1");
  assert.deepEqual(world.texts, ["One?", "Thinking…"]);
  assert.ok(isRunning(world.session.view));
  world.receive(chunk("Fir"));
  assert.deepEqual(world.texts, ["One?", "Fir"]);
  world.receive(ended(2));
  assert.ok(!isRunning(world.session.view));
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.texts, ["One?", "First."]);
});

test("a page that is loaded while a tool runs shows its call, then its result", async () => {
  const asked = { ...answer(""), metadata: { execution_id: "e1", step_number: 1, tool_calls: [{ id: "c1", name: "pay" }] } };
  const metadata = { execution_id: "e1", step_number: 1, status_type: "tool_call", tool_name: "pay", tool_call_id: "c1" };
  const runs = { ...question("Running pay"), id: "e1:1:tool:c1", role: "status", metadata };
  const world = await connected([question("Pay?"), asked, runs, inProgress("e1", "", 9)], "e1:9");
  assert.ok(isRunning(world.session.view));
  world.receive(returned(10));
  assert.deepEqual(world.texts, ["Pay?", "", "paid", ""]);
  assert.ok(isRunning(world.session.view));
});

test("a history within a run leaves one status, and the streamed text", async () => {
  const world = await connected([question("One?"), inProgress()]);
  world.receive(started(1), chunk("Fir"));
  await world.history([question("One?"), inProgress()]);
  assert.deepEqual(world.texts, ["One?", "Fir"]);
  world.receive(chunk("st", 1));
  world.session.refresh();
  await world.history([question("One?"), inProgress()]);
  assert.deepEqual(world.texts, ["One?", "First"]);
});

test("a connection that is replaced within a run keeps the text that no history has yet", async () => {
  const world = await connected([question("One?")]);
  world.receive(started(1), chunk("Fir"));
  world.cut(2);
  world.wait();
  await world.history([question("One?"), inProgress()], "e1:1");
  assert.deepEqual(world.texts, ["One?", "Fir"]);
  assert.ok(isRunning(world.session.view));
  world.receive(chunk("st", 1));
  assert.deepEqual(world.texts, ["One?", "First"]);
});

test("text that was cut off is gone when the next question is answered", async () => {
  const world = await connected([question("One?")]);
  world.receive(started(1), chunk("Half an ans"));
  world.receive(started(1, "e2"));
  assert.deepEqual(world.texts, ["One?", "Half an ans", "Thinking…"]);
  const asked = { ...question("Two?", 1), metadata: { execution_id: "e2" } };
  await world.history([question("One?"), asked, inProgress("e2")]);
  assert.deepEqual(world.texts, ["One?", "Two?", "Thinking…"]);
  world.receive(ended(2, "completed", "e2"));
  assert.ok(!isRunning(world.session.view));
  await world.history([question("One?"), asked, answer("Second.", "e2")]);
  assert.deepEqual(world.texts, ["One?", "Two?", "Second."]);
});

test("a run that had been cut off when the page was loaded is over when the next begins", async () => {
  const world = await connected([question("One?"), inProgress()]);
  assert.ok(isRunning(world.session.view), "it is not known yet");
  world.receive(started(1, "e2"), ended(2, "completed", "e2"));
  assert.ok(!isRunning(world.session.view));
  assert.deepEqual(world.texts, ["One?"]);
});

test("envelopes of a run after the next has begun are ignored", async () => {
  const world = await connected();
  world.receive(started(1), chunk("Half"), started(1, "e2"), chunk(" an", 1));
  assert.deepEqual(world.texts, ["Half", "Thinking…"]);
  await world.history([question("Two?"), inProgress("e2")]);
  world.receive(chunk(" answer", 2), ended(2, "completed", "e2"));
  await world.history([question("Two?"), answer("Second.", "e2")]);
  assert.deepEqual(world.texts, ["Two?", "Second."]);
  assert.ok(!isRunning(world.session.view));
});

test("an agent within a tool leaves the envelopes of the run around it", async () => {
  const inner = (envelope) => ({ ...envelope, agent_id: "a2" });
  const world = await connected();
  world.receive(started(1), chunk("Let me"), called(2));
  world.receive(inner(started(1, "e2")), inner(ended(2, "completed", "e2")));
  await world.history([question("One?"), inProgress("e1", "Thinking…", 0)]);
  assert.deepEqual(world.texts, ["One?", "Let me…", "Running pay"]);
  assert.ok(isRunning(world.session.view));
});
