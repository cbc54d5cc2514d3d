/** The messages of a session as blocks: a question, a step with its calls, or a line between them. */

import { group, type Drawn, type UiMessage } from "whyloop-ui";
import type { Call, CallStatus, Step } from "./api";

export interface Block {
  /** The id of its first message. */
  key: string;
  kind: "question" | "step" | "note";
  executionId: string | null;
  /** The number of the step in its execution. */
  number: number | null;
  drawn: readonly Drawn[];
}

const known = new WeakMap<readonly UiMessage[], Block[]>();

/** Return the blocks of messages. The same list has the same blocks. */
export function blocksOf(messages: readonly UiMessage[]): Block[] {
  const found = known.get(messages) ?? joined(group(messages).map(blockOf));
  known.set(messages, found);
  return found;
}

/** Return lists of blocks as one; a step that two lists share is one block. */
export function joinBlocks(...lists: Block[][]): Block[] {
  const all: Block[] = [];
  for (const list of lists) {
    const [last, first] = [all.at(-1), list[0]];
    if (last && first && isSameStep(last, first)) all[all.length - 1] = both(last, first);
    else if (first) all.push(first);
    for (let index = 1; index < list.length; index += 1) all.push(list[index]!);
  }
  return all;
}

function joined(blocks: Block[]): Block[] {
  const all: Block[] = [];
  for (const block of blocks) {
    const last = all.at(-1);
    if (last && isSameStep(last, block)) all[all.length - 1] = both(last, block);
    else all.push(block);
  }
  return all;
}

function blockOf(drawn: Drawn): Block {
  const { id, role, metadata } = drawn.message;
  const executionId = metadata?.execution_id ?? null;
  const number = metadata?.step_number ?? null;
  const kind = role === "user" ? "question" : number === null ? "note" : "step";
  return { key: id, kind, executionId, number, drawn: [drawn] };
}

function isSameStep(one: Block, other: Block): boolean {
  return (
    one.kind === "step" && other.kind === "step" && one.executionId === other.executionId && one.number === other.number
  );
}

function both(one: Block, other: Block): Block {
  return { ...one, drawn: [...one.drawn, ...other.drawn] };
}

/** Return whether two blocks show the same messages. */
export function isSameBlock(one: Block, other: Block): boolean {
  return (
    one === other ||
    (one.key === other.key &&
      one.drawn.length === other.drawn.length &&
      one.drawn.every((drawn, index) => isSameDrawn(drawn, other.drawn[index]!)))
  );
}

function isSameDrawn(one: Drawn, other: Drawn): boolean {
  return (
    one.message === other.message &&
    one.calls.length === other.calls.length &&
    one.calls.every(({ result }, index) => result === other.calls[index]!.result)
  );
}

/** The key under which a step is found, by its execution and its number there. */
export function stepKey(executionId: string | null, number: number | null): string {
  return `${executionId}\n${number}`;
}

/** Return the steps of a trace by their keys. */
export function stepsByKey(steps: readonly Step[], open: Step | null): Map<string, Step> {
  const all = open ? [...steps, open] : steps;
  return new Map(all.map((step) => [stepKey(step.execution_id, step.number), step]));
}

// Errors of calls that did not run, or of which the outcome is unknown.
const NOT_COMPLETED = /^(not run|not used|outcome unknown|blocked)\b/i;
const DENIED = /^denied by /i;

/**
 * Return the status of a call. The trace knows it, and is read a moment after the messages: until then its
 * message says it, if there is one.
 */
export function callStatus(result: UiMessage | null, recorded: Call | undefined, isLive: boolean): CallStatus {
  if (result?.role === "tool") {
    const { tool_error: error } = result.metadata ?? {};
    if (error === undefined) return "succeeded";
    if (recorded && ["failed", "denied", "not_completed"].includes(recorded.status)) return recorded.status;
    return DENIED.test(error) ? "denied" : NOT_COMPLETED.test(error) ? "not_completed" : "failed";
  }
  if (result?.metadata?.question_id !== undefined) return "waiting";
  if (!isLive) return recorded?.status ?? "not_completed";
  return result?.metadata?.status_type === "tool_call" ? "started" : "not_started";
}
