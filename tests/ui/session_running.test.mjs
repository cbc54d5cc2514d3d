// What the live view shows of a run that was under way when it was loaded, and of one that was cut off.
import assert from "node:assert/strict";
import { test } from "node:test";

import { isRunning } from "../../src/whyloop/ui/index.js";
import { CALL, World, connected } from "./world.mjs";
import { answer, chunk, ended, envelope, question, started, underWay } from "./world.mjs";

test("a page that is loaded while a model thinks shows that something runs", async () => {
  const world = await connected([question("One?"), underWay()], "e1:2");
  assert.deepEqual(world.words, ["One?", "Thinking…"]);
  assert.ok(isRunning(world.view.messages));
  world.hear(chunk(7, "Fir"));
  assert.deepEqual(world.words, ["One?", "Fir", ""]);
  world.hear(ended(9));
  assert.ok(!isRunning(world.view.messages));
  await world.history([question("One?"), answer("First.")]);
  assert.deepEqual(world.words, ["One?", "First."]);
});

test("a page that is loaded while a tool runs shows its call, then its result", async () => {
  const asked = { ...answer(""), metadata: { execution_id: "e1", step_number: 1, tool_calls: [{ id: "c1", name: "pay" }] } };
  const metadata = { execution_id: "e1", step_number: 1, status_type: "tool_call", tool_name: "pay", tool_call_id: "c1" };
  const runs = { ...question("Running pay"), id: "e1:1:tool:c1", role: "status", metadata };
  const world = await connected([question("Pay?"), asked, runs, underWay("e1", "")], "e1:9");
  assert.ok(isRunning(world.view.messages));
  world.hear(envelope("tool.completed", 10, { ...CALL, success: true, result_summary: "paid" }));
  assert.deepEqual(world.words, ["Pay?", "", "paid", ""]);
  assert.ok(isRunning(world.view.messages));
});

test("a history in the middle of a run leaves one status, and what was said", async () => {
  const world = await connected([question("One?"), underWay()]);
  world.hear(started(1), chunk(2, "Fir"));
  await world.history([question("One?"), underWay()]);
  assert.deepEqual(world.words, ["One?", "Fir", ""]);
  world.hear(chunk(3, "st", 1));
  world.view.refresh();
  await world.history([question("One?"), underWay()]);
  assert.deepEqual(world.words, ["One?", "First", ""]);
});

test("a line that is opened anew in the middle of a run shows that it runs", async () => {
  const world = await connected([question("One?")]);
  world.hear(started(1), chunk(2, "Fir"));
  world.cut(2);
  world.wait();
  await world.history([question("One?"), underWay()], "e1:1");
  assert.deepEqual(world.words, ["One?", "Thinking…"]);
  assert.ok(isRunning(world.view.messages));
});

test("what was cut off is gone when the next question is worked on", async () => {
  const world = await connected([question("One?")]);
  world.hear(started(1), chunk(2, "Half an ans"));
  world.hear(started(1, "e2"));
  assert.deepEqual(world.words, ["One?", "Half an ans", "", "Thinking…"]);
  const asked = { ...question("Two?", 1), metadata: { execution_id: "e2" } };
  await world.history([question("One?"), asked, underWay("e2")]);
  assert.deepEqual(world.words, ["One?", "Two?", "Thinking…"]);
  world.hear(ended(2, "completed", "e2"));
  assert.ok(!isRunning(world.view.messages));
  await world.history([question("One?"), asked, answer("Second.", "e2")]);
  assert.deepEqual(world.words, ["One?", "Two?", "Second."]);
});

test("a run that had been cut off when the page was loaded is over when the next begins", async () => {
  const world = await connected([question("One?"), underWay()]);
  assert.ok(isRunning(world.view.messages), "nobody can know");
  world.hear(started(1, "e2"), ended(2, "completed", "e2"));
  assert.ok(!isRunning(world.view.messages));
  assert.deepEqual(world.words, ["One?", "", ""]);
});

test("what a run says though the next has begun is gone when that has ended", async () => {
  const world = await connected();
  world.hear(started(1), chunk(2, "Half"), started(1, "e2"), chunk(3, " an", 1));
  assert.deepEqual(world.words, ["Half", "", "Thinking…"]);
  await world.history([question("Two?"), underWay("e2")]);
  world.hear(chunk(4, " answer", 2), ended(2, "completed", "e2"));
  await world.history([question("Two?"), answer("Second.", "e2")]);
  assert.deepEqual(world.words, ["Two?", "Second."]);
  assert.ok(!isRunning(world.view.messages));
});

test("an agent within a tool leaves what is heard of the run around it", async () => {
  const inner = (told) => ({ ...told, agent_id: "a2" });
  const world = await connected();
  world.hear(started(1), chunk(2, "Let me"), envelope("tool.started", 3, CALL));
  world.hear(inner(started(1, "e2")), inner(ended(2, "completed", "e2")));
  await world.history([question("One?"), underWay()]);
  assert.deepEqual(world.words, ["One?", "Let me", "Running pay", ""]);
  assert.ok(isRunning(world.view.messages));
});
