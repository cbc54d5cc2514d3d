/**
 * From the stored history of a session to a view of it.
 *
 * @typedef {import("./index.js").UiMessage} UiMessage
 * @typedef {import("./index.js").Run} Run
 */

import { isOpenCall, isText, metadataOf, statusId } from "./message.js";
import { View, newRun } from "./view.js";

const FAILURES = ["error", "retry_limit"];

/**
 * Return the view of a stored history.
 * @param {readonly UiMessage[]} history
 */
export function viewOf(history = []) {
  const last = history.findLastIndex((message) => isText(metadataOf(message).execution_id));
  if (last < 0) return new View(history, [], [], new Set());
  const first = firstOfStep(history, last);
  const run = storedRun(history.slice(first, last + 1));
  const finished = history.slice(0, first);
  const others = new Set(finished.map((message) => metadataOf(message).execution_id));
  others.delete(run.execution_id);
  return new View(finished, history.slice(first), [run], others);
}

/** Return the index at which the latest step of the run starts; this message is the run's last. */
function firstOfStep(history, last) {
  const { execution_id: own } = metadataOf(history[last]);
  let first = last;
  let latest;
  for (let index = last; index >= 0; index -= 1) {
    const { execution_id: executionId, step_number: step } = metadataOf(history[index]);
    if (!isText(executionId)) continue;
    if (executionId !== own || step < latest) break;
    first = index;
    if (history[index].role === "user") break;
    if (history[index].id !== statusId(own)) latest ??= step;
  }
  return first;
}

/**
 * Return the last run of a history, as the messages of its latest step show it.
 * @returns {Run}
 */
function storedRun(messages) {
  const last = messages.at(-1);
  const { execution_id: executionId, step_number: step = 0, ...known } = metadataOf(last);
  const isRunning = last.id === statusId(executionId);
  const isOpen = (message) => isOpenCall(message) && metadataOf(message).step_number === step;
  const calls = messages.filter(isOpen).map(({ id, metadata: { tool_call_id, tool_name, question_id = null } }) => {
    return { message_id: id, tool_call_id, tool_name, question_id };
  });
  const isQuestion = ({ question_id: id, tool_call_id: callId }) => isText(id) && !isText(callId);
  return {
    ...newRun(executionId),
    agent_id: known.agent_id ?? null,
    status: isRunning ? "in_progress" : statusAfter(known.continuation),
    seq: known.seq ?? 0,
    step_number: isRunning || calls.length ? step : step + 1,
    calls,
    question_id: messages.map(metadataOf).find(isQuestion)?.question_id ?? null,
    retry: known.retry ?? null,
    continuation: known.continuation ?? null,
    reason: known.reason ?? null,
    updated_at: last.timestamp,
  };
}

/** @returns {Run["status"]} */
function statusAfter(continuation) {
  if (continuation?.should_continue !== false) return "pending";
  const { stop_reason: reason = null } = continuation;
  if (reason === null) return "paused";
  if (reason === "completed") return "completed";
  return FAILURES.includes(reason) ? "failed" : "stopped";
}

/**
 * Return the view of a stored history in place of what was streamed. Two things of the client's own stay:
 * errors, and at the end the questions that are not stored yet. Messages that did not change stay the same
 * objects.
 * @param {View} view
 * @param {readonly UiMessage[]} history
 */
export function reconcile(view, history) {
  const streamed = view.messages;
  const places = new Map();
  const byCall = new Map();
  history.forEach((message, index) => {
    places.set(message.id, index);
    const callId = metadataOf(message).tool_call_id ?? null;
    if (callId !== null) byCall.set(callId, index);
  });
  const kept = new Map();
  let place = history.length - 1;
  for (const message of streamed) {
    const known = places.get(message.id) ?? byCall.get(metadataOf(message).tool_call_id);
    if (known !== undefined) place = known;
    else if (isOwnError(message)) kept.set(place, [...(kept.get(place) ?? []), message]);
  }
  const merged = history.length ? [] : [...(kept.get(-1) ?? [])];
  history.forEach((message, index) => merged.push(message, ...(kept.get(index) ?? [])));
  return shared(view, [...merged, ...unstoredQuestions(streamed, history)]);
}

/** Return the view of a history, with the objects and the list of the view before where they are the same. */
function shared(before, history) {
  const known = new Map(before.messages.map((message) => [message.id, message]));
  const view = viewOf(
    history.map((message) => (isSame(message, known.get(message.id)) ? known.get(message.id) : message)),
  );
  const isSameList =
    view.finished.length === before.finished.length &&
    view.finished.every((message, index) => message === before.finished[index]);
  return isSameList ? view.with({ finished: before.finished }) : view;
}

/** Return whether two values of JSON are the same, with their keys in the same order. */
function isSame(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  const [keys, others] = [Object.keys(one), Object.keys(other)];
  if (keys.length !== others.length || Array.isArray(one) !== Array.isArray(other)) return false;
  return keys.every((key, index) => key === others[index] && isSame(one[key], other[key]));
}

/** Return whether a message is an error of the client's own, such as a lost connection. */
function isOwnError(message) {
  const { status_type: type, execution_id: executionId = null } = metadataOf(message);
  return message.role === "status" && type === "error" && executionId === null;
}

/** Return the user's messages that the history lacks and that have no answer in it. */
function unstoredQuestions(streamed, history) {
  const stored = new Set(history.map((message) => metadataOf(message).execution_id));
  const isAnswer = (message) =>
    ["assistant", "tool"].includes(message.role) && stored.has(metadataOf(message).execution_id);
  const isQuestion = (message) => message.role === "user";
  const more = streamed.filter(isQuestion).length - history.filter(isQuestion).length;
  const sent = streamed.slice(streamed.findLastIndex(isAnswer) + 1).filter(isQuestion);
  return more > 0 ? sent.slice(Math.max(0, sent.length - more)) : [];
}
