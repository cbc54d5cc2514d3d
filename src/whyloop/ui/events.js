/**
 * What each event changes in the messages of a run.
 *
 * @typedef {import("./index.d.ts").Metadata} Metadata
 */

import { THINKING, argsSummary, statusText } from "./display.js";
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

/** Stands for text that was not received. */
const GAP = "…";
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

export const EVENTS = {
  "agent.status": (run, data, timestamp) => {
    const { status } = data;
    if (status === "in_progress") {
      const step = (whole(data.step_count) ?? 0) + 1;
      run.note({ step_number: step, continuation: undefined, reason: undefined, evaluations: undefined });
      run.say("thinking", THINKING);
      run.endOthers();
    } else if (ENDED.includes(status) || status === "paused") {
      const end = {
        continuation: {
          should_continue: false,
          stop_reason: textOrNull(data.stop_reason),
          resolved_by: textOrNull(data.resolved_by),
        },
        reason: textOrNull(data.reason) ?? undefined,
      };
      run.note(end);
      if (status === "failed") addError(run, data, timestamp, end);
      else run.say(status === "stopped" ? "continuation" : "info", statusText(data));
    }
  },

  "agent.step.started": (run, data, timestamp) => {
    const step = whole(data.step_number) || run.step;
    if (run.known.chunks !== undefined) {
      if (timestamp <= run.updatedAt) return; // Received before.
      dropText(run); // The process ended within the step, and another one takes it again.
      run.note({ chunks: undefined });
    }
    run.note({ step_number: step });
    if (!showsRetry(run)) run.say("thinking", THINKING);
  },

  "agent.stream.chunk": (run, data, timestamp) => {
    let { chunks: next = 0 } = run.known;
    const index = whole(data.chunk_index) ?? next;
    if (index < next) {
      if (timestamp <= run.updatedAt) return; // Received before.
      dropText(run); // As above, and the start of the step was not received.
      next = 0;
    }
    const id = assistantId(run.executionId, run.step);
    const message = run.get(id) ?? uiMessage(id, "assistant", "", timestamp, { ...ofStep(run), streaming: true });
    if (!metadataOf(message).streaming) return; // The history has it.
    run.note({ chunks: index + 1 });
    const isReasoning = data.kind === "reasoning";
    const piece = textOrNull(data.chunk) ?? "";
    if (piece || index > next) {
      // Reasoning comes before the text, as a rule: what is missing after the text began is text.
      const whole = index > next ? withGap(message, isReasoning && message.content === "") : message;
      run.put(withPiece(whole, piece, isReasoning));
      if (!isReasoning) run.say("thinking", "");
    }
    if (data.is_complete === true) endText(run, true);
  },

  "agent.tool.started": (run, data, timestamp) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const { id, step } = placeOfCall(run, callId);
    if (run.get(id, step)?.role === "tool") return;
    const call = callOf(data);
    addCall(run, step, call, timestamp);
    const metadata = { ...ofCall(run, step, data), status_type: "tool_call", tool_calls: [call] };
    run.put(uiMessage(id, "status", `Running ${tool}`, timestamp, metadata));
    run.say("thinking", "");
  },

  "agent.tool.completed": (run, data, timestamp) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const { id, step } = placeOfCall(run, callId);
    addCall(run, step, { id: callId, name: tool }, timestamp);
    const summary = textOrNull(data.result_summary) ?? "";
    const text = data.success === true ? summary : textOrNull(data.error) || summary;
    const result = data.success === true ? { tool_result: text } : { tool_error: text };
    /** @type {Metadata} */
    const metadata = { ...ofCall(run, step, data), ...result, ...changesOf(data.changed_by) };
    if (typeof data.duration_ms === "number") metadata.tool_duration_ms = data.duration_ms;
    run.put(uiMessage(id, "tool", text, timestamp, metadata));
  },

  "agent.approval.requested": (run, data, timestamp) => {
    const { tool, tool_call_id: callId, question_id: question } = data;
    if (!isText(question)) return;
    const content = textOrNull(data.question) ?? "";
    const asked = { status_type: "tool_call", question_id: question, question: content };
    if (!isText(tool) || !isText(callId) || !callId) {
      run.dropQuestion();
      const metadata = { ...ofStep(run), ...asked };
      run.put(uiMessage(questionId(run.executionId, question), "status", content, timestamp, metadata));
      return;
    }
    const { id, step } = placeOfCall(run, callId);
    const call = callOf(data);
    addCall(run, step, call, timestamp);
    const summary = call.args_summary === undefined ? {} : { args_summary: call.args_summary };
    const metadata = { ...ofCall(run, step, data), ...asked, ...summary, tool_calls: [call] };
    run.put(uiMessage(id, "status", content, timestamp, metadata));
    run.say("thinking", "");
  },

  "agent.approval.decided": (run, data, timestamp) => {
    const { tool, tool_call_id: callId, question_id: question } = data;
    if (!isText(question)) return;
    const content = decisionText(data);
    if (!isText(tool) || !isText(callId) || !callId) {
      const metadata = { ...ofStep(run), status_type: "info" };
      run.put(uiMessage(questionId(run.executionId, question), "status", content, timestamp, metadata));
      return;
    }
    const { id, step } = placeOfCall(run, callId, question);
    if (run.get(id, step)?.role === "tool") return;
    addCall(run, step, { id: callId, name: tool }, timestamp);
    run.put(uiMessage(id, "status", content, timestamp, { ...ofCall(run, step, data), status_type: "info" }));
  },

  "agent.step.completed": (run, data) => {
    const step = whole(data.step_number) || run.step;
    if (wasInterrupted(data)) markIncomplete(run, step);
    else if (whole(data.errors) && (lacksAnswer(data) || !hasText(run, step))) dropText(run, step);
    run.dropDecided(step);
    run.note({ step_number: step + 1 });
    const verdict = verdictOf(data.continuation);
    if (!verdict) return;
    run.note({ continuation: verdict });
    if (verdict.should_continue) run.say("thinking", THINKING);
  },

  "agent.retry": (run, data, timestamp) => {
    const [attempt, max] = [whole(data.attempt), whole(data.max)];
    if (!attempt || !max) return;
    run.say("continuation", `Retrying (${attempt}/${max})`);
    run.note({ retry: { attempt, max, until: waitEnd(timestamp, data.wait_seconds) } });
  },

  "agent.continuation": (run, data) => {
    const verdict = verdictOf(data);
    if (!verdict) return;
    const evaluations = Array.isArray(data.evaluations) ? data.evaluations : undefined;
    run.note({ continuation: verdict, evaluations });
  },
};

function verdictOf(value) {
  if (!isObject(value) || typeof value.should_continue !== "boolean") return null;
  return {
    should_continue: value.should_continue,
    stop_reason: textOrNull(value.stop_reason),
    resolved_by: textOrNull(value.resolved_by),
  };
}

function ofStep(run, step = run.step) {
  return { execution_id: run.executionId, step_number: step };
}

function ofCall(run, step, { tool, tool_call_id: callId }) {
  return { ...ofStep(run, step), tool_call_id: callId, tool_name: tool };
}

/** Show an error that stays until the history has it. */
function addError(run, data, timestamp, end) {
  run.say("info", "");
  const step = whole(data.step_count) ?? 0;
  const metadata = { ...ofStep(run, step), status_type: "error", continuation: end.continuation };
  if (end.reason !== undefined) metadata.reason = end.reason;
  run.put(uiMessage(errorId(run.executionId, step), "status", statusText(data), timestamp, metadata));
}

/** Return whether the status says that a failure is retried. */
function showsRetry(run) {
  return run.known.retry !== undefined;
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
export function endText(run, isComplete = false) {
  const message = run.get(assistantId(run.executionId, run.step));
  if (!message || !metadataOf(message).streaming) return;
  const text = isComplete ? message : withGap(message, message.content === "");
  run.put(withMetadata(text, { streaming: undefined }));
}

/** Return whether a step ended without a complete answer: the model call failed, or was interrupted. */
function lacksAnswer(data) {
  return (data.finish_reason ?? null) === null && data.has_tool_calls === false;
}

/** Return whether the answer of a step was interrupted by a stop or a time limit: its text is kept. */
export function wasInterrupted(data) {
  return lacksAnswer(data) && data.errors === 0;
}

/** Keep the text of an answer that was interrupted; of one that had none yet, nothing is in the history. */
function markIncomplete(run, step) {
  const message = run.get(assistantId(run.executionId, step), step);
  if (hasText(run, step)) run.put(withMetadata(message, { incomplete: true }));
  else if (message) dropText(run, step);
}

/** Return whether any text of the answer was received; a mark for missing text is none. */
function hasText(run, step) {
  const { content = "" } = run.get(assistantId(run.executionId, step), step) ?? {};
  return content.replaceAll(GAP, "") !== "";
}

/** Remove the text of an answer that broke off: the history has nothing of it. */
export function dropText(run, step = run.step) {
  const id = assistantId(run.executionId, step);
  const message = run.get(id, step);
  if (message && !metadataOf(message).tool_calls?.length) run.drop(id, step);
}

// Calls

/** Return the id and the step of the message of a call: of one without a result, else in this step. */
function placeOfCall(run, callId, question) {
  const open = (question && run.openCall("question_id", question)) || run.openCall("tool_call_id", callId);
  if (!open) return { id: toolId(run.executionId, run.step, callId), step: run.step };
  return { id: open.id, step: whole(metadataOf(open).step_number) || run.step };
}

function callOf({ tool, tool_call_id: callId, args, args_summary: summary, changed_by: hooks }) {
  const call = { id: callId, name: tool };
  if (isObject(args) || isText(args)) Object.assign(call, { args, args_summary: argsSummary(args) });
  if (isText(summary)) call.args_summary = summary;
  return { ...call, ...changesOf(hooks) };
}

/** Return the names of the hooks that changed a call or its result, if there are any. */
function changesOf(hooks) {
  return Array.isArray(hooks) && hooks.length && hooks.every(isText) ? { changed_by: hooks } : {};
}

/** Add a call to the assistant message of its step, which may have no text at all. */
function addCall(run, step, call, timestamp) {
  const id = assistantId(run.executionId, step);
  const message = run.get(id, step) ?? uiMessage(id, "assistant", "", timestamp, ofStep(run, step));
  const calls = metadataOf(message).tool_calls ?? [];
  if (calls.some((known) => known.id === call.id)) return;
  run.put(withMetadata(message, { tool_calls: [...calls, call] }));
}

function decisionText({ tool, verdict, by, reason }) {
  const decided = (textOrNull(verdict) || "decided") + (textOrNull(by) ? ` by ${by}` : "");
  const text = textOrNull(reason) ? `${decided}: ${reason}` : decided;
  return textOrNull(tool) ? `${tool}: ${text}` : text;
}
