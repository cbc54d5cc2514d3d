// The cost of an envelope: `node --test tests/ui`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { reduce, viewOf } from "../../src/whyloop/ui/index.js";
import { answer, envelope, question } from "./platform.mjs";

const LONG = 20_000;
const ENVELOPES = 1_000;
const ROUNDS = 15;
const MOST = 5; // A cost that grows with the history is thirty times as much or more.

/** The envelopes of a run that streams text and calls a tool in each step. */
function* envelopesOf(id) {
  let seq = 1;
  yield envelope("status", seq, { status: "in_progress", step_count: 0 }, id);
  for (let step = 1; ; step += 1) {
    const call = { tool: "search", tool_call_id: `c${step}` };
    for (let index = 0; index < 10; index += 1) {
      const chunk = { kind: "text", chunk: "word ", chunk_index: index, is_complete: index === 9 };
      yield envelope("stream.chunk", seq, chunk, id);
    }
    yield envelope("tool.started", (seq += 1), { ...call, args_summary: "query: 'dbplus'" }, id);
    yield envelope("tool.completed", (seq += 1), { ...call, success: true, result_summary: "two" }, id);
    const continuation = { should_continue: true, stop_reason: null, resolved_by: "ToolCallPresenceCheck" };
    yield envelope("step.completed", (seq += 1), { step_number: step, has_tool_calls: true, continuation }, id);
  }
}

const first = (count, values) => Array.from({ length: count }, () => values.next().value);

const manyRuns = Array.from({ length: LONG / 2 }, (_, number) => [
  { ...question("Who?", number * 2), metadata: { execution_id: `run ${number}` } },
  answer("Me.", `run ${number}`),
]).flat();
const longRun = Array.from({ length: LONG }, (_, number) => ({
  ...{ id: `new:0.${number}:assistant`, role: "assistant", content: "a", timestamp: "2026-01-16T10:00:00.000Z" },
  metadata: { execution_id: "new", step_number: number / LONG },
}));
const questions = Array.from({ length: LONG }, (_, number) => question("Who?", number));

/** The microseconds that an envelope costs in each case: the best of rounds that take turns, since others may use the machine. */
function costs(cases) {
  const rounds = cases.map(() => []);
  for (let round = -3; round < ROUNDS; round += 1) {
    cases.forEach(({ view, envelopes }, index) => {
      const begin = performance.now();
      envelopes.reduce(reduce, view);
      if (round >= 0) rounds[index].push(((performance.now() - begin) * 1000) / envelopes.length);
    });
  }
  return rounds.map((costs) => Math.min(...costs));
}

function assertSameCost(little, much) {
  const [one, other] = costs([little, much]);
  assert.ok(other < one * MOST, `${other.toFixed(1)} µs for each envelope instead of ${one.toFixed(1)} µs`);
}

/** The view before each block of envelopes, and the view at the end. */
function viewsOf(blocks) {
  const views = [viewOf()];
  for (const block of blocks) views.push(block.reduce(reduce, views.at(-1)));
  return views;
}

const histories = { "many runs": manyRuns, "one long run": longRun, "questions only": questions };
for (const [name, history] of Object.entries(histories)) {
  test(`an envelope costs as much after a history of 20,000 messages as after none: ${name}`, () => {
    const envelopes = first(ENVELOPES, envelopesOf("new"));
    assertSameCost({ view: viewOf(), envelopes }, { view: viewOf(history), envelopes });
  });
}

test("an envelope costs as much at the end of a long run as at its beginning", () => {
  const run = envelopesOf("new");
  const blocks = Array.from({ length: 100 }, () => first(ENVELOPES, run));
  const views = viewsOf(blocks);
  assertSameCost({ view: views[3], envelopes: blocks[3] }, { view: views[99], envelopes: blocks[99] });
  const { messages, live } = views[100];
  assert.ok(messages.length > 14_000 && live.length < 300, "few messages of a long run are live");
  const steps = messages.filter(({ role }) => role !== "status").map(({ metadata }) => metadata.step_number);
  assert.deepEqual(steps, steps.map((_, index) => Math.floor(index / 2) + 1), "two messages for each step, in order");
});

test("an envelope costs as much after many short runs as after some, though no history has replaced them", () => {
  const runs = Array.from({ length: 2_000 }, (_, number) => first(50, envelopesOf(`run ${number}`)));
  const blocks = Array.from({ length: 100 }, (_, number) => runs.slice(number * 20, number * 20 + 20).flat());
  const views = viewsOf(blocks);
  assertSameCost({ view: views[3], envelopes: blocks[3] }, { view: views[99], envelopes: blocks[99] });
  const { messages, live, runs: known } = views[100];
  assert.ok(messages.length > 12_000 && live.length < 300, "few messages are live");
  assert.ok(known.length < 100, "few runs are known");
});

test("the finished messages are the same list while a run is in progress", () => {
  const before = viewOf(manyRuns);
  const after = first(ENVELOPES / 10, envelopesOf("new")).reduce(reduce, before);
  assert.equal(after.finished, before.finished);
  assert.equal(after.messages.length, before.messages.length + after.live.length - before.live.length);
});
