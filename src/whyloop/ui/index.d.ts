/** What a chat UI shows of a whyloop session: envelopes as they arrive, reconciled with the history. */

export type Role = "user" | "assistant" | "tool" | "status";
export type StatusType = "thinking" | "tool_call" | "tool_result" | "error" | "info" | "continuation";
export type StopReason =
  | "completed"
  | "steps_limit"
  | "token_limit"
  | "time_limit"
  | "retry_limit"
  | "error"
  | "finish_reason"
  | "guard"
  | "user_requested";

export interface ToolCall {
  id: string;
  name: string;
  /** What the model sent: an object, or the text as it came where that was no JSON object. */
  args?: Record<string, unknown> | string;
  args_summary?: string;
}

export interface Continuation {
  should_continue: boolean;
  /** Null while it goes on, and while it waits for a person. */
  stop_reason: StopReason | (string & {}) | null;
  resolved_by: string | null;
}

export interface Evaluation {
  criterion: string;
  decision: "forbid" | "request" | "stop" | "allow";
  reason: string;
  context: Record<string, unknown>;
}

export interface Attachment {
  type: "image" | "file";
  url?: string;
  media_type?: string;
  name?: string;
}

export interface Metadata {
  execution_id?: string;
  step_number?: number;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  tool_name?: string;
  tool_result?: string;
  tool_error?: string;
  tool_duration_ms?: number;
  status_type?: StatusType;
  continuation?: Continuation;
  /** What every rule said, while envelopes of the debug preset tell it. */
  evaluations?: Evaluation[];
  attachments?: Attachment[];
  /** True while text is still being added. */
  streaming?: boolean;
  /** True for a tool call that waits for a person; `content` is the question. */
  waiting?: boolean;
  /**
   * How far the envelopes of an execution have been heard, 0 if none was so far, and those that came too
   * early. The status of one that is over since another has begun has neither.
   */
  seq?: number;
  held?: Envelope[];
  /** Whose execution it is, in the status of one. */
  agent_id?: string;
}

export interface UiMessage {
  id: string;
  role: Role;
  content: string;
  /** UTC with milliseconds: 2026-01-16T10:05:01.123Z */
  timestamp: string;
  metadata?: Metadata;
}

export interface Envelope {
  v: number;
  event: string;
  seq: number;
  timestamp: string;
  agent_id: string;
  session_id: string;
  execution_id: string;
  data: Record<string, unknown>;
}

/** A message, and for one with tool calls each of them with what came of it. */
export interface Drawn {
  message: UiMessage;
  calls: { call: ToolCall; result: UiMessage | null }[];
}

export interface Gap {
  execution_id: string;
  first: number;
  last: number;
}

/**
 * The messages after an envelope, in a new list; the same list where it changes nothing. With `inOrder`
 * what is missing before the envelope is not waited for, since nothing comes late on such a line.
 */
export function reduce(
  messages: readonly UiMessage[],
  envelope: Envelope,
  options?: { inOrder?: boolean },
): readonly UiMessage[];

/** The history as it is stored, in the place of what was streamed. */
export function reconcile(streamed: readonly UiMessage[], canonical: readonly UiMessage[]): UiMessage[];

/** True if the text of a message is to be shown as text. */
export function shouldRenderContent(message: UiMessage): boolean;

/** What to draw, top to bottom, results under their calls. */
export function group(messages: readonly UiMessage[]): Drawn[];

/** The first three arguments, each value cut short. */
export function argsSummary(args: Record<string, unknown> | string, longest?: number): string;

/** What to show for the data of an `agent.status`, or for a message's `continuation`. */
export function statusText(status: {
  status?: unknown;
  stop_reason?: unknown;
  error_message?: unknown;
  should_continue?: unknown;
}): string;

/** True for a status that goes when the history comes; an error stays. */
export function isEphemeral(message: UiMessage): boolean;

/** True while an execution is under way, as far as its envelopes and the history tell. */
export function isRunning(messages: readonly UiMessage[]): boolean;

/** The envelopes that have not come while later ones have. */
export function missing(messages: readonly UiMessage[]): Gap[];
