/** Where two runs differ, step by step. */

import type { Call, Step } from "./api";
import { CALL_WORDS } from "./icons";

/** A step of a run with what the model said. */
export interface ComparedStep {
  step: Step;
  text: string;
}

/** What differs between two steps; a step that only one run has differs as a whole. */
export interface Difference {
  isSame: boolean;
  text: boolean;
  /** The places of the calls that differ. */
  calls: Set<number>;
  /** The rules that voted differently. */
  votes: Set<string>;
}

/** Compare two steps by what they did, not by how long it took. */
export function differenceOf(left: ComparedStep | undefined, right: ComparedStep | undefined): Difference {
  if (!left || !right) return { isSame: false, text: false, calls: new Set(), votes: new Set() };
  const text = left.text !== right.text;
  const calls = new Set<number>();
  const most = Math.max(left.step.tool_calls.length, right.step.tool_calls.length);
  for (let place = 0; place < most; place += 1) {
    if (!isSameCall(left.step.tool_calls[place], right.step.tool_calls[place])) calls.add(place);
  }
  const votes = differentVotes(left.step, right.step);
  const isSame = !text && calls.size === 0 && votes.size === 0 && left.step.type === right.step.type;
  return { isSame, text, calls, votes };
}

function isSameCall(left: Call | undefined, right: Call | undefined): boolean {
  return (
    !!left &&
    !!right &&
    left.name === right.name &&
    left.status === right.status &&
    left.error === right.error &&
    hasSameArguments(left, right) &&
    left.result === right.result
  );
}

function hasSameArguments(left: Call, right: Call): boolean {
  return JSON.stringify(sorted(left.arguments)) === JSON.stringify(sorted(right.arguments));
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, each]) => [key, sorted(each)]),
  );
}

/** What a step is recognized by in another run: what the model said and called, not what came of it. */
export function markOf({ step, text }: ComparedStep): string {
  return JSON.stringify([step.type === "error", text, step.tool_calls.map((call) => [call.name, sorted(call.arguments)])]);
}

function differentVotes(left: Step, right: Step): Set<string> {
  const votes = (step: Step) =>
    new Map(step.outcome?.evaluations.map(({ criterion, decision }) => [criterion, decision]));
  const [ours, theirs] = [votes(left), votes(right)];
  return new Set([...ours.keys(), ...theirs.keys()].filter((rule) => ours.get(rule) !== theirs.get(rule)));
}

/** Describe how two steps beside each other differ; `hasEnded` is about the run that has no step there. */
export function differenceText(
  left: ComparedStep | undefined,
  right: ComparedStep | undefined,
  hasEnded: boolean,
): string {
  if (!left || !right) {
    const [with_, without] = left ? ["left", "right"] : ["right", "left"];
    return hasEnded
      ? `The run on the ${without} has ended, the one on the ${with_} continues.`
      : `Only the run on the ${with_} took this step. What follows is aligned again.`;
  }
  const { text, calls, votes } = differenceOf(left, right);
  const place = [...calls][0];
  if (place !== undefined) return callText(left.step.tool_calls[place], right.step.tool_calls[place]);
  if (text) return "The model wrote different texts.";
  if (votes.size) return `${[...votes].join(", ")} voted differently.`;
  return "The steps are of different kinds.";
}

function callText(left: Call | undefined, right: Call | undefined): string {
  if (!left || !right) return `${(left ?? right)!.name} was called only on the ${left ? "left" : "right"}.`;
  if (left.name !== right.name) return `${left.name} was called on the left, ${right.name} on the right.`;
  const same = hasSameArguments(left, right);
  const about = same ? "The arguments are the same." : "The arguments differ.";
  const word = (call: Call): string => CALL_WORDS[call.status].toLowerCase();
  if (left.status !== right.status)
    return `${left.name} ${was(word(left))} on the left and ${was(word(right))} on the right. ${about}`;
  if (!same) return `${left.name} was called with different arguments.`;
  return left.error !== right.error
    ? `${left.name} failed with different errors. ${about}`
    : `${left.name} returned different results. ${about}`;
}

function was(word: string): string {
  return ["succeeded", "failed"].includes(word) ? word : `was ${word}`;
}
