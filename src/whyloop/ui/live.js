/**
 * The live view of a session: how each envelope changes the messages, and how the history replaces them.
 *
 * Numbered envelopes are applied once, in the order of their `seq`. All others are best effort: they carry
 * the seq of the last numbered envelope, and are applied only while that is the last one applied.
 *
 * The messages hold everything that is known. Each execution that is followed has a status message, the
 * last of its messages, with the seq reached and the envelopes that arrived too early in its metadata.
 *
 * @typedef {import("./index.d.ts").UiMessage} UiMessage
 * @typedef {import("./index.d.ts").Envelope} Envelope
 */

import { ENDED, EVENTS, NUMBERED, dropText, endText, wasInterrupted } from "./events.js";
import { isObject, isText, metadataOf, position, statusId, uiMessage, whole, withMetadata } from "./message.js";

/** The number of envelopes to hold for a missing one before going on without it. */
const WINDOW = 8;

// The history

/**
 * Return the stored history in place of what was streamed. Two things of the client's own stay: errors,
 * and at the end the questions that are not stored yet.
 * @type {typeof import("./index.d.ts").reconcile}
 */
export function reconcile(streamed, canonical) {
  const places = new Map();
  const byCall = new Map();
  canonical.forEach((message, index) => {
    places.set(message.id, index);
    const callId = metadataOf(message).tool_call_id ?? null;
    if (callId !== null) byCall.set(callId, index);
  });
  const kept = new Map();
  let place = canonical.length - 1;
  for (const message of streamed) {
    const known = places.get(message.id) ?? byCall.get(metadataOf(message).tool_call_id);
    if (known !== undefined) place = known;
    else if (isOwnError(message)) kept.set(place, [...(kept.get(place) ?? []), message]);
  }
  const merged = canonical.length ? [] : [...(kept.get(-1) ?? [])];
  canonical.forEach((message, index) => merged.push(message, ...(kept.get(index) ?? [])));
  return [...merged, ...unstoredQuestions(streamed, canonical)];
}

/** Return whether a message is an error of the client's own, such as a lost connection. */
function isOwnError(message) {
  const { status_type: type, execution_id: executionId = null } = metadataOf(message);
  return message.role === "status" && type === "error" && executionId === null;
}

/** Return the user's messages that the history lacks and that have no answer so far. */
function unstoredQuestions(streamed, canonical) {
  let answered = streamed.length - 1;
  while (answered >= 0 && !["assistant", "tool"].includes(streamed[answered].role)) answered -= 1;
  const isQuestion = (message) => message.role === "user";
  const more = streamed.filter(isQuestion).length - canonical.filter(isQuestion).length;
  const sent = streamed.slice(answered + 1).filter(isQuestion);
  return more > 0 ? sent.slice(Math.max(0, sent.length - more)) : [];
}

// Envelopes

/**
 * Return the messages after an envelope, in a new list; the same list if it changes nothing.
 *
 * A numbered envelope that arrives too early is held until those before it are there, or too many are held,
 * or the execution has ended. One that was applied before is ignored, and so is whatever cannot be read.
 * @type {typeof import("./index.d.ts").reduce}
 */
export function reduce(messages, envelope) {
  if (!isReadable(envelope)) return messages;
  const run = new Run(messages, envelope);
  const { seq, held = [] } = run.known;
  if (run.isOver) return messages;
  if (!NUMBERED.has(envelope.event)) {
    if (!run.isStored && (!seq || envelope.seq === seq)) run.apply(envelope);
    return run.messages;
  }
  if (envelope.seq <= seq || held.some((early) => early.seq === envelope.seq)) return messages;
  const waiting = [...held, envelope].sort((one, other) => one.seq - other.seq);
  const atOnce = waiting.some(isEnding);
  while (waiting.length && (run.isNext(waiting[0]) || waiting.length > WINDOW || atOnce)) {
    run.apply(waiting.shift());
  }
  run.note({ held: waiting.length ? waiting : undefined });
  return run.messages;
}

/**
 * Return whether an execution is in progress, as far as the history and the envelopes say.
 * @type {typeof import("./index.d.ts").isRunning}
 */
export function isRunning(messages) {
  return messages.some(isInProgress);
}

/**
 * Return the gaps: numbered envelopes that have not arrived while later ones have.
 * @type {typeof import("./index.d.ts").missing}
 */
export function missing(messages) {
  return messages
    .filter((message) => message.role === "status" && metadataOf(message).held)
    .map(metadataOf)
    .map(({ execution_id, seq, held }) => ({ execution_id, first: seq + 1, last: held[0].seq - 1 }));
}

function isReadable(envelope) {
  return (
    isObject(envelope) &&
    envelope.v === 1 &&
    isText(envelope.event) &&
    Object.hasOwn(EVENTS, envelope.event) &&
    Boolean(whole(envelope.seq)) &&
    isText(envelope.execution_id) &&
    isText(envelope.timestamp) &&
    isObject(envelope.data)
  );
}

function isEnding({ event, data }) {
  return event === "agent.status" && (ENDED.includes(data.status) || data.status === "paused");
}

function isStart({ event, data }) {
  return event === "agent.status" && data.status === "in_progress";
}

function isInterruption({ event, data }) {
  return event === "agent.step.completed" && wasInterrupted(data);
}

/** Return whether a message is the status of an execution that has neither ended nor paused. */
function isInProgress(message) {
  if (message.role !== "status") return false;
  const { execution_id: executionId, seq, continuation } = metadataOf(message);
  return message.id === statusId(executionId) && seq !== undefined && continuation?.should_continue !== false;
}

/** Return a message of an execution that is over without a word of its end. */
function asOver(message) {
  if (!isInProgress(message)) return withMetadata(message, { streaming: undefined });
  const over = { status_type: "info", seq: undefined, held: undefined, chunks: undefined };
  return { ...withMetadata(message, over), content: "" };
}

/**
 * Return where the history of an execution ends, how far it goes and how it ended.
 * It is read once per execution: afterwards its status has it all.
 */
function storedRun(messages, executionId) {
  const isOwn = (message) => metadataOf(message).execution_id === executionId;
  let last = messages.length - 1;
  while (last >= 0 && !isOwn(messages[last])) last -= 1;
  if (last < 0) return { place: messages.length, step: 1, seq: 0, end: null, isSuperseded: false };
  const { step_number: step = 0, seq = 0, continuation, reason } = metadataOf(messages[last]);
  const end = continuation?.should_continue === false ? { continuation, ...(reason && { reason }) } : null;
  const isSuperseded = messages.slice(last + 1).some(isStoredQuestion);
  let isOpen = false;
  for (let index = last; index >= 0 && messages[index].role !== "user"; index -= 1) {
    if (!isOwn(messages[index])) continue;
    if (metadataOf(messages[index]).step_number !== step) break;
    isOpen ||= isOpenCall(messages[index]);
  }
  return { place: last + 1, step: isOpen ? step : step + 1, seq, end, isSuperseded };
}

/** Return whether a message is a question from the history; one of the client's own has no execution yet. */
function isStoredQuestion(message) {
  return message.role === "user" && isText(metadataOf(message).execution_id);
}

/** Return whether a message stands for a tool call that has no result yet. */
function isOpenCall(message) {
  return message.role === "status" && isText(metadataOf(message).tool_call_id);
}

/** The messages while envelopes of one execution change them; they are copied before the first change. */
class Run {
  #index;
  #unwritten = null;
  #isCopied = false;

  constructor(messages, { execution_id: executionId, agent_id: agentId, timestamp }) {
    this.messages = messages;
    this.executionId = executionId;
    /** True if the history has the end of the execution, or a pause, and nothing has followed. */
    this.isStored = false;
    this.isSuperseded = false;
    this.#index = position(messages, statusId(executionId));
    if (this.#index >= 0) return;
    const { place, step, seq, end, isSuperseded } = storedRun(messages, executionId);
    this.isStored = end !== null;
    this.isSuperseded = isSuperseded;
    this.#index = place;
    const metadata = {
      ...{ status_type: end ? "info" : "thinking", execution_id: executionId, step_number: step, seq },
      ...(isText(agentId) && { agent_id: agentId }),
      ...end,
    };
    this.#unwritten = uiMessage(statusId(executionId), "status", "", timestamp, metadata);
  }

  get status() {
    return this.#unwritten ?? this.messages[this.#index];
  }

  get known() {
    return metadataOf(this.status);
  }

  get step() {
    return this.known.step_number;
  }

  /** The time of the last envelope that was applied. */
  get updatedAt() {
    return this.status.timestamp;
  }

  /** True if nothing more is expected of the execution: it has completed, or another one began since. */
  get isOver() {
    const { seq, continuation } = this.known;
    return seq === undefined || this.isSuperseded || (this.isStored && continuation.stop_reason === "completed");
  }

  /** Return whether a numbered envelope follows what was applied last; any does if that is not known. */
  isNext(envelope) {
    return !this.known.seq || envelope.seq === this.known.seq + 1 || this.#isResumedBy(envelope);
  }

  /**
   * Return whether an envelope continues an execution that was paused or has ended. Between the two there are
   * only decisions, which are not sent where a session is not in a store: they are not waited for.
   */
  #isResumedBy(envelope) {
    const { continuation, step_number: step } = this.known;
    const isNextLeg = isStart(envelope) && whole(envelope.data.step_count) === step - 1;
    return isNextLeg && continuation?.should_continue === false;
  }

  apply(envelope) {
    const { event, data, seq, timestamp } = envelope;
    if (NUMBERED.has(event)) {
      if (this.known.chunks !== undefined) isStart(envelope) ? dropText(this) : endText(this, isInterruption(envelope));
      this.note({ seq, chunks: undefined });
      this.#setStatus({ ...this.status, timestamp });
      EVENTS[event](this, data, timestamp);
      return;
    }
    EVENTS[event](this, data, timestamp);
    if (!this.#isCopied) return;
    this.note({ seq });
    this.#setStatus({ ...this.status, timestamp });
  }

  /** Set metadata of the status; undefined removes an entry. */
  note(entries) {
    this.#setStatus(withMetadata(this.status, entries));
  }

  say(statusType, content) {
    this.#setStatus({ ...withMetadata(this.status, { status_type: statusType, retry: undefined }), content });
  }

  #setStatus(status) {
    this.#edit()[this.#index] = status;
  }

  #edit() {
    if (!this.#isCopied) {
      this.#isCopied = true;
      this.messages = this.messages.slice();
      if (this.#unwritten) this.messages.splice(this.#index, 0, this.#unwritten);
      this.#unwritten = null;
    }
    return this.messages;
  }

  /**
   * Return the position of the last message of the execution that matches, -1 if there is none. Only the
   * step's messages are searched, at the end of the list: a session may have thousands before them.
   */
  #find(step, matches) {
    for (let index = this.#index - 1; index >= 0; index -= 1) {
      const message = this.messages[index];
      if (message.role === "user") return -1;
      const metadata = metadataOf(message);
      if (metadata.execution_id !== this.executionId) continue;
      if (matches(message, metadata)) return index;
      if (metadata.step_number < step) return -1;
    }
    return -1;
  }

  get(id, step = this.step) {
    return this.messages[this.#find(step, (message) => message.id === id)];
  }

  /** Return the message of a call of the step that has no result yet, by what its metadata has. */
  openCall(key, value) {
    const isIt = (message, metadata) => isOpenCall(message) && metadata[key] === value;
    return this.messages[this.#find(this.step, isIt)];
  }

  put(message) {
    const place = this.#find(metadataOf(message).step_number, ({ id }) => id === message.id);
    const messages = this.#edit();
    if (place >= 0) {
      messages[place] = message;
    } else {
      messages.splice(this.#index, 0, message);
      this.#index += 1;
    }
  }

  drop(id, step) {
    const place = this.#find(step, (message) => message.id === id);
    if (place < 0) return;
    this.#edit().splice(place, 1);
    this.#index -= 1;
  }

  /** Remove the questions about calls of a step that is closed: they were decided, and have a result. */
  dropDecided(step) {
    const isIt = (message, { step_number: number, question_id: id }) =>
      isOpenCall(message) && number === step && isText(id);
    for (let place; (place = this.#find(step, isIt)) >= 0; ) this.drop(this.messages[place].id, step);
  }

  /** Remove the open question about the run itself: there is one at a time. */
  dropQuestion() {
    const isIt = (message, { question_id: id, tool_call_id: callId }) => isText(id) && callId === undefined;
    const found = this.messages[this.#find(this.step, isIt)];
    if (found) this.drop(found.id, this.step);
  }

  /**
   * End the other executions of the session: it runs one at a time, so the ends of those in progress were
   * missed. Agents within a tool have sessions of their own.
   */
  endOthers() {
    const isOther = (message) =>
      isInProgress(message) &&
      metadataOf(message).agent_id === this.known.agent_id &&
      message.timestamp <= this.updatedAt;
    const over = new Set(this.messages.filter(isOther).map((message) => metadataOf(message).execution_id));
    over.delete(this.executionId);
    if (!over.size) return;
    this.messages = this.#edit().map((message) =>
      over.has(metadataOf(message).execution_id) ? asOver(message) : message,
    );
  }
}
