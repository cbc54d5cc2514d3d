/** From the envelopes and the history of a whyloop session to what a chat UI shows. */

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
  /** The arguments as an object, or the model's text where that is not a JSON object. */
  args?: Record<string, unknown> | string;
  args_summary?: string;
  /** The hooks that changed the arguments. */
  changed_by?: string[];
}

export interface Continuation {
  should_continue: boolean;
  /** Null while the run continues, and while it waits for a person. */
  stop_reason: StopReason | (string & {}) | null;
  resolved_by: string | null;
}

export interface Evaluation {
  criterion: string;
  decision: "forbid" | "request" | "stop" | "allow";
  reason: string;
  stop_reason?: StopReason | (string & {}) | null;
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
  /** The hooks that made or replaced the result of a call. */
  changed_by?: string[];
  status_type?: StatusType;
  continuation?: Continuation;
  /** The reason of the deciding rule, beside a `continuation` that does not continue. */
  reason?: string;
  /** The evaluation of every rule, if envelopes of the debug preset carry them. */
  evaluations?: Evaluation[];
  attachments?: Attachment[];
  /** The model's reasoning, for people; never part of `content`. */
  reasoning?: string;
  /** True if the answer was interrupted. */
  incomplete?: boolean;
  /** The rules whose feedback to the model a status shows. */
  source?: string[];
  /** True while text is still being added. */
  streaming?: boolean;
  /** The question to decide by, while a person's decision is awaited; absent once it is decided. */
  question_id?: string;
  question?: string;
  args_summary?: string;
  /** The retry that a status is about; `until` is when its wait ends, null if it does not wait. */
  retry?: { attempt: number; max: number; until: string | null };
  /** The agent of an execution, in its status. */
  agent_id?: string;
  /** The number of the last envelope of the execution that is in the messages; 0 if it is not known. */
  seq?: number;
  /** The envelopes that arrived before an earlier one, in the status of an execution. */
  held?: Envelope[];
  /** The index that the next chunk of the step has, in the status of an execution. */
  chunks?: number;
}

export interface UiMessage {
  id: string;
  role: Role;
  content: string;
  /** UTC with milliseconds: 2026-01-16T10:05:01.123Z */
  timestamp: string;
  metadata?: Metadata;
}

export type Status = "pending" | "in_progress" | "paused" | "completed" | "stopped" | "failed";

/** Arguments of a call: a summary, or all of them where the preset says so; and the hooks that changed them. */
export interface Arguments {
  args_summary?: string;
  args?: Record<string, unknown> | string;
  changed_by?: string[];
}

/** The `data` of each event. */
export interface EnvelopeData {
  "agent.status": {
    status: Status;
    previous_status: Status;
    stop_reason: StopReason | null;
    resolved_by: string | null;
    reason: string | null;
    step_count: number;
    error_message: string | null;
    last_response: string | null;
  };
  "agent.step.started": { step_number: number; message_count: number; available_tools: string[] };
  "agent.step.completed": {
    step_number: number;
    has_tool_calls: boolean;
    errors: number;
    finish_reason: string | null;
    usage: { input: number; output: number; total: number; cost: string | null };
    duration_ms: number;
    continuation: Continuation;
  };
  "agent.tool.started": { tool: string; tool_call_id: string } & Arguments;
  "agent.tool.completed": {
    tool: string;
    tool_call_id: string;
    success: boolean;
    error: string | null;
    duration_ms: number;
    result_summary: string;
    /** The hooks that made or replaced the result. */
    changed_by?: string[];
  };
  "agent.stream.chunk": {
    kind: "text" | "reasoning";
    chunk: string;
    chunk_index: number;
    is_complete: boolean;
  };
  /** A question about a tool call, or about the run itself: then without `tool` and `tool_call_id`. */
  "agent.approval.requested": {
    question_id: string;
    tool: string | null;
    tool_call_id: string | null;
    question: string;
  } & Arguments;
  "agent.approval.decided": {
    question_id: string;
    tool: string | null;
    tool_call_id: string | null;
    verdict: "approved" | "denied" | "edited";
    by: string;
    reason: string | null;
  };
  "agent.retry": { attempt: number; max: number; wait_seconds: number; error_type: string };
  "agent.continuation": { step_number: number; evaluations: Evaluation[] } & Continuation;
  /** Any other event, in the debug preset. */
  "agent.event": { name: string; fields: Record<string, unknown> };
}

/** What happened in a session; `event` says which `data` it has. */
export type Envelope = { [Event in keyof EnvelopeData]: EnvelopeOf<Event> }[keyof EnvelopeData];

export interface EnvelopeOf<Event extends keyof EnvelopeData> {
  v: 1;
  event: Event;
  /** Increases by one over numbered envelopes; all others carry the number of the last numbered one. */
  seq: number;
  timestamp: string;
  agent_id: string;
  session_id: string;
  execution_id: string;
  data: EnvelopeData[Event];
}

/** A message, and each of its tool calls with its result: a tool message, or the status of an open call. */
export interface Drawn {
  message: UiMessage;
  calls: { call: ToolCall; result: UiMessage | null }[];
}

/** The numbers of envelopes that have not arrived while later ones have. */
export interface Gap {
  execution_id: string;
  first: number;
  last: number;
}

/** Return the messages after an envelope, in a new list; the same list if it changes nothing. */
export function reduce(messages: readonly UiMessage[], envelope: Envelope): readonly UiMessage[];

/** Return the stored history in place of what was streamed. */
export function reconcile(streamed: readonly UiMessage[], canonical: readonly UiMessage[]): UiMessage[];

/** Return whether the text of a message is shown as text. */
export function shouldRenderContent(message: UiMessage): boolean;

/** Return what to draw, top to bottom, results under their calls. */
export function group(messages: readonly UiMessage[]): Drawn[];

/** Return the first three arguments, each value cut short. */
export function argsSummary(args: Record<string, unknown> | string, longest?: number): string;

/** Return the text to show for the data of an `agent.status`, or for a message's `continuation`. */
export function statusText(status: {
  status?: unknown;
  stop_reason?: unknown;
  error_message?: unknown;
  should_continue?: unknown;
}): string;

/** Return whether a message is a status that the history replaces; an error stays. */
export function isEphemeral(message: UiMessage): boolean;

/** Return whether an execution is in progress, as far as the history and the envelopes say. */
export function isRunning(messages: readonly UiMessage[]): boolean;

/** Return the gaps: numbered envelopes that have not arrived while later ones have. */
export function missing(messages: readonly UiMessage[]): Gap[];
