/** From the envelopes and the history of a whyloop session to what a chat UI shows. */

import type { Continuation, Envelope, Evaluation, Status } from "./envelope.js";

export type * from "./envelope.js";

// Messages

export type Role = "user" | "assistant" | "tool" | "status";
export type StatusType = "thinking" | "tool_call" | "tool_result" | "error" | "info" | "continuation";

/** A message, from the history of a session or made of envelopes. */
export interface UiMessage {
  /** The same from the history and from envelopes, for every message of a step. */
  id: string;
  role: Role;
  /** The text. It is data: show it as text, or as Markdown without markup, never as HTML. */
  content: string;
  /** UTC with milliseconds: 2026-01-16T10:05:01.123Z */
  timestamp: string;
  /** All other facts; absent if there are none. */
  metadata?: Metadata;
}

export interface Metadata {
  /** The run that the message belongs to. */
  execution_id?: string;
  /** The step of the run, counted from 1. */
  step_number?: number;
  /** The calls of an assistant message, or the one that a status is about. */
  tool_calls?: ToolCall[];
  /** The call that a tool message or a status belongs to. */
  tool_call_id?: string;
  tool_name?: string;
  /** The result of a call that succeeded; from an envelope only its beginning. */
  tool_result?: string;
  /** Why a call did not succeed. */
  tool_error?: string;
  tool_duration_ms?: number;
  /** The hooks that made or replaced the result of a call. */
  changed_by?: string[];
  /** The subject of a status. */
  status_type?: StatusType;
  /** How the run ended or paused, in its last message. */
  continuation?: Continuation;
  /** The reason of the deciding rule, beside a `continuation` that does not continue. */
  reason?: string;
  /** The images and files of a question. */
  attachments?: Attachment[];
  /** The model's reasoning, for people; never part of `content`. */
  reasoning?: string;
  /** True if the answer was interrupted. */
  incomplete?: boolean;
  /** The rules whose feedback to the model a status shows. */
  source?: string[];
  /** True while text is still being added. */
  streaming?: boolean;
  /** The id of the question, while a person's decision is awaited; absent once it is decided. */
  question_id?: string;
  /** The text of the question. */
  question?: string;
  /** The arguments of the call that a question is about. */
  args_summary?: string;
  /** The retry that a status is about. */
  retry?: Retry;
  /** In a history: the agent of the run in progress. */
  agent_id?: string;
  /** In a history: the number of the last envelope that is in it; 0 if it is not known. */
  seq?: number;
}

export interface ToolCall {
  /** The provider's id of the call. */
  id: string;
  /** The name of the tool. */
  name: string;
  /** The arguments as an object, or the model's text where that is not a JSON object. */
  args?: Record<string, unknown> | string;
  /** The first three arguments, each value cut short. */
  args_summary?: string;
  /** The hooks that changed the arguments. */
  changed_by?: string[];
}

/** An image or a file. Its bytes stay in the store. */
export interface Attachment {
  type: "image" | "file";
  url?: string;
  media_type?: string;
  name?: string;
}

export interface Retry {
  /** The number of this retry, counted from 1. */
  attempt: number;
  /** The number of retries that the policy allows. */
  max: number;
  /** The end of its wait; null if it does not wait. */
  until: string | null;
}

// The view

/**
 * The view of a session. It never changes: each function that takes a view returns a new one, or the same
 * one if nothing changed. Message objects and lists that are the same in both views are shared.
 */
export interface View {
  /** All messages, oldest first: `finished` and `live`. They are joined when they are first read. */
  readonly messages: readonly UiMessage[];
  /** The latest runs, in the order in which they were seen: the last one of the history, and those since. */
  readonly runs: readonly Run[];
  /** The messages that no envelope changes any more. The same list for hundreds of envelopes. */
  readonly finished: readonly UiMessage[];
  /** The few messages after them, which change. A call and its result are in the same list. */
  readonly live: readonly UiMessage[];
}

/** What is known of a run: the work on one question. */
export interface Run {
  readonly execution_id: string;
  /** The agent of the run; null if it is not known. Agents within a tool have ids of their own. */
  readonly agent_id: string | null;
  /** `pending` before its first envelope; `lost` if another run began and its own end was not received. */
  readonly status: Status | "lost";
  /** The number of the last numbered envelope that was applied; 0 if it is not known. */
  readonly seq: number;
  /** The step in progress, or the next one. In a history that has ended, the one after its last message. */
  readonly step_number: number;
  /** The index of the next chunk of the step; null if none has arrived since the last numbered envelope. */
  readonly chunks: number | null;
  /** The calls of the step that have no result yet. */
  readonly calls: readonly OpenCall[];
  /** The open question about the run itself, by its id. */
  readonly question_id: string | null;
  /** The retry that the run waits for, or is at. */
  readonly retry: Retry | null;
  /** The last outcome of the rules. */
  readonly continuation: Continuation | null;
  /** The reason of the deciding rule, if the run has ended or paused. */
  readonly reason: string | null;
  /** The last evaluation of every rule, if envelopes of the debug preset carry it. */
  readonly evaluations: readonly Evaluation[] | null;
  /** The numbers of the envelopes that have not arrived while later ones have. */
  readonly gap: { readonly first: number; readonly last: number } | null;
  /** Those later ones, in order. They are applied when the gap is filled. */
  readonly held: readonly Envelope[];
  /** The time of the last envelope that was applied, or of the last message in the history. */
  readonly updated_at: string;
}

export interface OpenCall {
  /** The status that shows the call, and becomes the message of its result. */
  readonly message_id: string;
  readonly tool_call_id: string;
  readonly tool_name: string;
  /** The question that a person has to decide first; null if there is none. */
  readonly question_id: string | null;
}

/** Return the view of a stored history; without one, an empty view. */
export function viewOf(history?: readonly UiMessage[]): View;

/** Return the view after an envelope; the same view if it changes nothing. */
export function reduce(view: View, envelope: Envelope): View;

/**
 * Return the view of a stored history in place of what was streamed. Errors of the client's own stay, and so
 * do questions at the end that are not stored yet.
 */
export function reconcile(view: View, history: readonly UiMessage[]): View;

/** Return the view with a message of the client's own at its end. */
export function addMessage(view: View, message: UiMessage): View;

/** Return the view without a message that was added; the same view if the message is already gone. */
export function removeMessage(view: View, message: UiMessage): View;

/** Return whether a run is in progress, as far as the history and the envelopes show. */
export function isRunning(view: View): boolean;

// How to draw messages

/** A message, and each of its tool calls with its result: a tool message, or the status of an open call. */
export interface Drawn {
  message: UiMessage;
  calls: { call: ToolCall; result: UiMessage | null }[];
}

/** Return what to draw, top to bottom, results under their calls. */
export function group(messages: readonly UiMessage[]): Drawn[];

/** Return whether the text of a message is shown as text. */
export function shouldRenderContent(message: UiMessage): boolean;

/** Return whether a message is a status that the history replaces; an error stays. */
export function isEphemeral(message: UiMessage): boolean;

/** Return the first three arguments, each value cut short. */
export function argsSummary(args: Record<string, unknown> | string, longest?: number): string;

/**
 * Return a text as a person must see it who decides about it: escapes for characters that reverse or hide text, and a
 * mark after each word that mixes Latin with Greek, Cyrillic or Armenian letters. Show arguments and questions with it.
 */
export function reveal(text: string): string;

/** Return JSON with escapes for characters that reverse or hide text, so that a person can edit it. */
export function escapeInvisible(text: string): string;

/** Return the text to show for the data of an `agent.status`, or for a message's `continuation`. */
export function statusText(status: {
  status?: unknown;
  stop_reason?: unknown;
  error_message?: unknown;
  should_continue?: unknown;
}): string;
