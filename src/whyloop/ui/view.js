/**
 * The view of a session: its messages and its latest runs.
 *
 * A view never changes. Each function returns a new one, which shares everything with the view before that
 * is still the same. Only the messages of the latest steps can change, so a view holds them in a short list
 * of their own: the work for an envelope does not depend on the length of the history.
 *
 * @typedef {import("./index.js").UiMessage} UiMessage
 * @typedef {import("./index.js").Run} Run
 */

import { isOpenCall, isText, metadataOf, statusId } from "./message.js";

const FAILURES = ["error", "retry_limit"];

export class View {
  #messages;
  #finishedRuns;

  /**
   * @param {readonly UiMessage[]} finished
   * @param {readonly UiMessage[]} live
   * @param {readonly Run[]} runs
   * @param {ReadonlySet<string>} finishedRuns The executions whose messages are all in `finished`.
   */
  constructor(finished, live, runs, finishedRuns) {
    this.finished = finished;
    this.live = live;
    this.runs = runs;
    this.#finishedRuns = finishedRuns;
  }

  get messages() {
    return (this.#messages ??= this.finished.concat(this.live));
  }

  /** Return the view with other messages or runs, and with more runs that are finished. */
  with({ finished = this.finished, live = this.live, runs = this.runs, finishedRuns = [] }) {
    const ids = finishedRuns.map((run) => run.execution_id);
    const all = ids.length ? new Set([...this.#finishedRuns, ...ids]) : this.#finishedRuns;
    return new View(finished, live, runs, all);
  }

  /** Return whether nothing more is expected of a run, since another one follows it. */
  isSuperseded(executionId) {
    return this.#finishedRuns.has(executionId);
  }
}

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

/** Return where the latest step of the run starts that this message is the last one of. */
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
  const own = messages.map((message) => [message, metadataOf(message)]);
  const calls = own.filter(([message, metadata]) => isOpenCall(message) && metadata.step_number === step);
  const question = own.find(([, metadata]) => isText(metadata.question_id) && !isText(metadata.tool_call_id));
  return {
    ...newRun(executionId),
    agent_id: known.agent_id ?? null,
    status: isRunning ? "in_progress" : statusAfter(known.continuation),
    seq: known.seq ?? 0,
    step_number: isRunning || calls.length ? step : step + 1,
    calls: calls.map(([{ id }, { tool_call_id, tool_name, question_id = null }]) => ({
      ...{ message_id: id, tool_call_id, tool_name, question_id },
    })),
    question_id: question ? question[1].question_id : null,
    retry: known.retry ?? null,
    continuation: known.continuation ?? null,
    reason: known.reason ?? null,
    updated_at: last.timestamp,
  };
}

/** @returns {Run} */
export function newRun(executionId) {
  return {
    execution_id: executionId,
    agent_id: null,
    status: "pending",
    seq: 0,
    step_number: 1,
    chunks: null,
    calls: [],
    question_id: null,
    retry: null,
    continuation: null,
    reason: null,
    evaluations: null,
    held: [],
    gap: null,
    updated_at: "",
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
 * Return whether a run is in progress, as far as the history and the envelopes show.
 * @type {typeof import("./index.js").isRunning}
 */
export function isRunning(view) {
  return view.runs.some((run) => run.status === "in_progress");
}

// Messages of the client's own

/**
 * Return the view with a message of the client's own at its end.
 * @param {View} view
 * @param {UiMessage} message
 */
export function addMessage(view, message) {
  return view.with({ live: [...view.live, message] });
}

/**
 * Return the view without a message that was added; the same view if it is not there any more.
 * @param {View} view
 * @param {UiMessage} message
 */
export function removeMessage(view, message) {
  const list = ["live", "finished"].find((name) => view[name].includes(message));
  return list ? view.with({ [list]: view[list].filter((each) => each !== message) }) : view;
}

// The history

/**
 * Return the view of a stored history in place of what was streamed. Two things of the client's own stay:
 * errors, and at the end the questions that are not stored yet.
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
  return viewOf([...merged, ...unstoredQuestions(streamed, history)]);
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
