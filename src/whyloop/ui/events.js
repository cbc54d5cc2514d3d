/**
 * The changes that each event makes in a view.
 *
 * @typedef {import("./index.js").Metadata} Metadata
 * @typedef {import("./draft.js").Draft} Draft
 */

import { THINKING, WRAPPING_UP, argsSummary, statusText } from "./display.js";
import {
  assistantId,
  errorId,
  isObject,
  isText,
  metadataOf,
  questionId,
  textOrNull,
  toolId,
  uiMessage,
  whole,
  withMetadata,
} from "./message.js";

/** The mark for text that was not received. */
export const GAP = "…";
export const ENDED = ["completed", "stopped", "failed"];

export const NUMBERED = new Set([
  "agent.status",
  "agent.step.completed",
  "agent.tool.started",
  "agent.tool.completed",
  "agent.approval.requested",
  "agent.approval.decided",
  "agent.retry",
]);

/** @type {Record<string, (draft: Draft, data: any) => void>} */
export const EVENTS = {
  "agent.status": (draft, data) => {
    const { status } = data;
    if (status === "in_progress") {
      enterStep(draft, lastStep(data) + 1);
      draft.note({ status, continuation: null, reason: null, evaluations: null });
      draft.showStatus("thinking", THINKING);
      draft.endOthers();
    } else if (ENDED.includes(status) || status === "paused") {
      const continuation = outcomeOf({ ...data, should_continue: false });
      const reason = textOrNull(data.reason);
      draft.note({ status, continuation, reason });
      const why = reason === null ? { continuation } : { continuation, reason };
      if (status === "failed") addError(draft, data, why);
      else draft.showStatus(status === "stopped" ? "continuation" : "info", statusText(data), why);
    }
  },

  "agent.step.started": (draft, data) => {
    const step = whole(data.step_number) || draft.run.step_number;
    if (draft.run.chunks !== null) {
      if (draft.timestamp <= draft.run.updated_at) return; // Received before.
      dropText(draft); // The process ended within the step, and another one takes it again.
      draft.note({ chunks: null });
    }
    enterStep(draft, step);
    if (textOrNull(data.wrap_up)) draft.showStatus("thinking", WRAPPING_UP); // Nothing is retried any more.
    else if (draft.run.retry === null) draft.showStatus("thinking", THINKING);
  },

  "agent.stream.chunk": (draft, data) => {
    let next = draft.run.chunks ?? 0;
    const index = whole(data.chunk_index) ?? next;
    if (index < next) {
      if (draft.timestamp <= draft.run.updated_at) return; // Received before.
      dropText(draft); // As above, and the start of the step was not received.
      next = 0;
    }
    const id = assistantId(draft.run.execution_id, draft.run.step_number);
    const message =
      draft.get(id) ?? uiMessage(id, "assistant", "", draft.timestamp, { ...ofStep(draft), streaming: true });
    if (!metadataOf(message).streaming) return; // The history has it.
    draft.note({ chunks: index + 1 });
    const isReasoning = data.kind === "reasoning";
    const piece = textOrNull(data.chunk) ?? "";
    if (piece || index > next) {
      // Reasoning comes before the text, as a rule: a chunk that is missing after the text began is text.
      const before = index > next ? withGap(message, isReasoning && message.content === "") : message;
      draft.put(withPiece(before, piece, isReasoning));
      if (!isReasoning) draft.showStatus("thinking", "");
    }
    if (data.is_complete === true) endText(draft, true);
  },

  "agent.tool.started": (draft, data) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const id = messageOfCall(draft, callId);
    if (draft.get(id)?.role === "tool") return;
    const call = callOf(data);
    addCall(draft, call);
    openCall(draft, id, data, null);
    const metadata = { ...ofCall(draft, data), status_type: "tool_call", tool_calls: [call] };
    draft.put(uiMessage(id, "status", `Running ${tool}`, draft.timestamp, metadata));
    draft.showStatus("thinking", "");
  },

  "agent.tool.completed": (draft, data) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const id = messageOfCall(draft, callId);
    addCall(draft, { id: callId, name: tool });
    closeCall(draft, id);
    const summary = textOrNull(data.result_summary) ?? "";
    const text = data.success === true ? summary : textOrNull(data.error) || summary;
    const result = data.success === true ? { tool_result: text } : { tool_error: text };
    /** @type {Metadata} */
    const metadata = { ...ofCall(draft, data), ...result, ...changesOf(data.changed_by) };
    if (typeof data.duration_ms === "number") metadata.tool_duration_ms = data.duration_ms;
    draft.put(uiMessage(id, "tool", text, draft.timestamp, metadata));
    if (draft.run.retry !== null) draft.showStatus("thinking", ""); // A call that was blocked has not started.
  },

  "agent.approval.requested": (draft, data) => {
    const { tool, tool_call_id: callId, question_id: question } = data;
    if (!isText(question)) return;
    const content = textOrNull(data.question) ?? "";
    const asked = { status_type: "tool_call", question_id: question, question: content };
    if (!isText(tool) || !isText(callId) || !callId) {
      dropQuestion(draft);
      draft.note({ question_id: question });
      const id = questionId(draft.run.execution_id, question);
      draft.put(uiMessage(id, "status", content, draft.timestamp, { ...ofStep(draft), ...asked }));
      return;
    }
    const id = messageOfCall(draft, callId);
    const call = callOf(data);
    addCall(draft, call);
    openCall(draft, id, data, question);
    const summary = call.args_summary === undefined ? {} : { args_summary: call.args_summary };
    const metadata = { ...ofCall(draft, data), ...asked, ...summary, tool_calls: [call] };
    draft.put(uiMessage(id, "status", content, draft.timestamp, metadata));
    draft.showStatus("thinking", "");
  },

  "agent.approval.decided": (draft, data) => {
    const { tool, tool_call_id: callId, question_id: question } = data;
    if (!isText(question)) return;
    const content = decisionText(data);
    if (!isText(tool) || !isText(callId) || !callId) {
      draft.note({ question_id: null });
      const id = questionId(draft.run.execution_id, question);
      draft.put(uiMessage(id, "status", content, draft.timestamp, { ...ofStep(draft), status_type: "info" }));
      return;
    }
    const id = messageOfCall(draft, callId, question);
    if (draft.get(id)?.role === "tool") return;
    addCall(draft, { id: callId, name: tool });
    openCall(draft, id, data, null);
    draft.put(uiMessage(id, "status", content, draft.timestamp, { ...ofCall(draft, data), status_type: "info" }));
  },

  "agent.step.completed": (draft, data) => {
    const step = whole(data.step_number) || draft.run.step_number;
    if (wasInterrupted(data)) markIncomplete(draft, step);
    else if (whole(data.errors) && (lacksAnswer(data) || !hasText(draft, step))) dropText(draft, step);
    // The questions about its calls were decided, and have a result.
    for (const call of draft.run.calls) if (call.question_id !== null) draft.drop(call.message_id);
    enterStep(draft, step + 1);
    const continuation = outcomeOf(data.continuation);
    if (!continuation) return;
    draft.note({ continuation });
    if (!continuation.should_continue) return;
    draft.note({ status: "in_progress" });
    draft.showStatus("thinking", THINKING);
  },

  "agent.retry": (draft, data) => {
    const [attempt, max] = [whole(data.attempt), whole(data.max)];
    if (!attempt || !max) return;
    const retry = { attempt, max, until: waitEnd(draft.timestamp, data.wait_seconds) };
    draft.showStatus("continuation", `Retrying (${attempt}/${max})`, { retry });
  },

  "agent.continuation": (draft, data) => {
    if (Array.isArray(data.evaluations)) draft.note({ evaluations: data.evaluations });
  },
};

/** Return the outcome of the rules; null if the value has none. */
function outcomeOf(value) {
  if (!isObject(value) || typeof value.should_continue !== "boolean") return null;
  return {
    should_continue: value.should_continue,
    stop_reason: textOrNull(value.stop_reason),
    resolved_by: textOrNull(value.resolved_by),
  };
}

function ofStep(draft, step = draft.run.step_number) {
  return { execution_id: draft.run.execution_id, step_number: step };
}

function ofCall(draft, { tool, tool_call_id: callId }) {
  return { ...ofStep(draft), tool_call_id: callId, tool_name: tool };
}

/** Return the number of the last closed step, from the data of a status: wrap-ups have numbers too. */
export function lastStep(data) {
  return (whole(data.step_count) ?? 0) + (whole(data.wrap_ups) ?? 0);
}

/** Note the step that the run is in. The calls of another step have their results, or will have none. */
function enterStep(draft, step) {
  if (step !== draft.run.step_number) draft.note({ step_number: step, calls: [] });
}

/** Show an error that stays until the history has it. */
function addError(draft, data, why) {
  draft.showStatus("info", "");
  const step = lastStep(data);
  const metadata = { ...ofStep(draft, step), status_type: "error", ...why };
  const id = errorId(draft.run.execution_id, step);
  draft.put(uiMessage(id, "status", statusText(data), draft.timestamp, metadata));
}

/** Return the time at which a wait ends; null if there is none. */
function waitEnd(timestamp, seconds) {
  const end = new Date(Date.parse(timestamp) + seconds * 1000);
  return seconds > 0 && !Number.isNaN(end.getTime()) ? end.toISOString() : null;
}

// Text

/** Return the message with a piece of text or of reasoning at its end. */
function withPiece(message, piece, isReasoning) {
  if (!isReasoning) return { ...message, content: message.content + piece };
  return withMetadata(message, { reasoning: (metadataOf(message).reasoning ?? "") + piece });
}

/** Return the message with a mark at its end for text that was not received. */
function withGap(message, isReasoning) {
  const text = isReasoning ? metadataOf(message).reasoning : message.content;
  return text?.endsWith(GAP) ? message : withPiece(message, GAP, isReasoning);
}

/** End the text of the step. Unless its last chunk was received, the end of the text is missing. */
export function endText(draft, isComplete = false) {
  const message = draft.get(assistantId(draft.run.execution_id, draft.run.step_number));
  if (!message || !metadataOf(message).streaming) return;
  const text = isComplete ? message : withGap(message, message.content === "");
  draft.put(withMetadata(text, { streaming: undefined }));
}

/** Return whether a step ended without a complete answer: the model call failed, or was interrupted. */
function lacksAnswer(data) {
  return (data.finish_reason ?? null) === null && data.has_tool_calls === false;
}

/** Return whether the answer of a step was interrupted by a stop or a time limit: its text is kept. */
export function wasInterrupted(data) {
  return lacksAnswer(data) && data.errors === 0;
}

/** Keep the text of an interrupted answer; without text, nothing of it is in the history. */
function markIncomplete(draft, step) {
  const message = draft.get(assistantId(draft.run.execution_id, step));
  if (hasText(draft, step)) draft.put(withMetadata(message, { incomplete: true }));
  else if (message) dropText(draft, step);
}

/** Return whether any text of the answer was received; a mark for missing text does not count. */
function hasText(draft, step) {
  const { content = "" } = draft.get(assistantId(draft.run.execution_id, step)) ?? {};
  return content.replaceAll(GAP, "") !== "";
}

/** Remove the text of an answer that broke off: the history has nothing of it. */
export function dropText(draft, step = draft.run.step_number) {
  const id = assistantId(draft.run.execution_id, step);
  const message = draft.get(id);
  if (message && !metadataOf(message).tool_calls?.length) draft.drop(id);
}

// Calls

/** Return the id of the message of a call without a result, or else of a new one in this step. */
function messageOfCall(draft, callId, question) {
  const { calls, execution_id: executionId, step_number: step } = draft.run;
  const open =
    (question && calls.findLast((call) => call.question_id === question)) ||
    calls.findLast((call) => call.tool_call_id === callId);
  return open ? open.message_id : toolId(executionId, step, callId);
}

/** Note that a call has no result yet, and the question that it waits for. */
function openCall(draft, messageId, { tool, tool_call_id }, question) {
  const call = { message_id: messageId, tool_call_id, tool_name: tool, question_id: question };
  const { calls } = draft.run;
  const isKnown = calls.some((known) => known.message_id === messageId);
  const open = isKnown ? calls.map((known) => (known.message_id === messageId ? call : known)) : [...calls, call];
  draft.note({ calls: open });
}

function closeCall(draft, messageId) {
  draft.note({ calls: draft.run.calls.filter((call) => call.message_id !== messageId) });
}

/** Remove the open question about the run itself: there is one at a time. */
function dropQuestion(draft) {
  const { execution_id: executionId, question_id: question } = draft.run;
  if (question !== null) draft.drop(questionId(executionId, question));
}

function callOf({ tool, tool_call_id: callId, args, args_summary: summary, changed_by: hooks }) {
  /** @type {import("./index.js").ToolCall} */
  const call = { id: callId, name: tool };
  if (isObject(args) || isText(args)) Object.assign(call, { args, args_summary: argsSummary(args) });
  if (isText(summary)) call.args_summary = summary;
  return { ...call, ...changesOf(hooks) };
}

/** Return the names of the hooks that changed a call or its result, if there are any. */
function changesOf(hooks) {
  return Array.isArray(hooks) && hooks.length && hooks.every(isText) ? { changed_by: hooks } : {};
}

/** Add a call to the assistant message of the step, which may have no text at all. */
function addCall(draft, call) {
  const id = assistantId(draft.run.execution_id, draft.run.step_number);
  const message = draft.get(id) ?? uiMessage(id, "assistant", "", draft.timestamp, ofStep(draft));
  const calls = metadataOf(message).tool_calls ?? [];
  if (calls.some((known) => known.id === call.id)) return;
  draft.put(withMetadata(message, { tool_calls: [...calls, call] }));
}

function decisionText({ tool, verdict, by, reason }) {
  const decided = (textOrNull(verdict) || "decided") + (textOrNull(by) ? ` by ${by}` : "");
  const text = textOrNull(reason) ? `${decided}: ${reason}` : decided;
  return textOrNull(tool) ? `${tool}: ${text}` : text;
}
