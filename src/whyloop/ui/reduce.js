/**
 * How an envelope changes a view.
 *
 * Numbered envelopes are applied once, in the order of their `seq`. All others are best effort: they carry
 * the seq of the last numbered envelope, and are applied only while that is the last one applied.
 *
 * @typedef {import("./view.js").View} View
 * @typedef {import("./index.js").Envelope} Envelope
 */

import { Draft } from "./draft.js";
import { ENDED, EVENTS, NUMBERED, dropText, endText, lastStep, wasInterrupted } from "./events.js";
import { isObject, isText, textOrNull, whole } from "./message.js";
import { newRun } from "./view.js";

/** The number of envelopes to hold for a missing one before continuing without it. */
const WINDOW = 8;

/**
 * Return the view after an envelope; the same view if it changes nothing.
 *
 * A numbered envelope that arrives too early is held until those before it are there, or too many are held,
 * or the run has ended. One that was applied before is ignored, and so is one that cannot be read.
 * @param {View} view
 * @param {Envelope} envelope
 */
export function reduce(view, envelope) {
  if (!isReadable(envelope) || view.isSuperseded(envelope.execution_id)) return view;
  const isOwn = (run) => run.execution_id === envelope.execution_id;
  const draft = new Draft(view, view.runs.find(isOwn) ?? newRun(envelope.execution_id));
  if (NUMBERED.has(envelope.event)) receiveNumbered(draft, envelope);
  else if (isCurrent(draft.run, envelope)) apply(draft, envelope);
  return draft.view;
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

/** Return whether an envelope without a number of its own belongs to what was applied last. */
function isCurrent(run, { event, seq }) {
  const isOpen = run.status === "in_progress" || run.status === "pending";
  // The evaluations behind an end may arrive after it.
  return (isOpen || event === "agent.continuation") && (!run.seq || run.seq === seq);
}

function receiveNumbered(draft, envelope) {
  const { status, seq, held } = draft.run;
  const isOver = status === "completed" || status === "lost";
  if (isOver || envelope.seq <= seq || held.some((early) => early.seq === envelope.seq)) return;
  const waiting = [...held, envelope].sort((one, other) => one.seq - other.seq);
  const atOnce = waiting.some(isEnding);
  while (waiting.length && (isNext(draft.run, waiting[0]) || waiting.length > WINDOW || atOnce)) {
    apply(draft, waiting.shift());
  }
  const gap = waiting.length ? { first: draft.run.seq + 1, last: waiting[0].seq - 1 } : null;
  draft.note({ held: waiting, gap });
}

/** Return whether a numbered envelope follows what was applied last; any does if that is not known. */
function isNext(run, envelope) {
  return !run.seq || envelope.seq === run.seq + 1 || isResumption(run, envelope);
}

/**
 * Return whether an envelope continues a run that was paused or has ended. Between the two there are only
 * decisions, which are not sent where a session is not in a store: they are not waited for.
 */
function isResumption(run, envelope) {
  const hasEnded = ENDED.includes(run.status) || run.status === "paused";
  return hasEnded && isStart(envelope) && lastStep(envelope.data) === run.step_number - 1;
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

/** @param {Draft} draft @param {Envelope} envelope */
function apply(draft, envelope) {
  const { event, data, seq, timestamp } = envelope;
  draft.timestamp = timestamp;
  const { agent_id: agentId, status, chunks } = draft.run;
  const reached = {
    agent_id: agentId ?? textOrNull(envelope.agent_id),
    status: status === "pending" ? "in_progress" : status,
    ...{ seq, updated_at: timestamp },
  };
  if (NUMBERED.has(event)) {
    if (chunks !== null) isStart(envelope) ? dropText(draft) : endText(draft, isInterruption(envelope));
    draft.note({ ...reached, chunks: null });
    EVENTS[event](draft, data);
  } else {
    EVENTS[event](draft, data);
    if (draft.isChanged) draft.note(reached);
  }
}
