/** The envelopes of a session, as a union: `event` says which `data` an envelope has. */

export type Status = "pending" | "in_progress" | "paused" | "completed" | "stopped" | "failed";

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

/** The outcome of the rules after a step. */
export interface Continuation {
  /** Whether another step follows. */
  should_continue: boolean;
  /** Why the run ends; null while it continues, and while it waits for a person. */
  stop_reason: StopReason | null;
  /** The rule that decided. */
  resolved_by: string | null;
}

/** The evaluation of one rule. */
export interface Evaluation {
  /** The name of the rule. */
  criterion: string;
  decision: "forbid" | "request" | "stop" | "allow";
  /** The reason of its decision, for a person to read. */
  reason: string;
  /** The stop reason of the run if this evaluation ends it. */
  stop_reason: StopReason | null;
  /** The numbers behind the reason, for display. */
  context: Record<string, unknown>;
}

/** The data of every event. */
export interface Data {
  /** True if a transport had to cut texts so that the envelope fits. */
  trimmed?: true;
  /** The fields that were cut. */
  trimmed_fields?: string[];
}

/** The run started, paused or ended. The last one of a run has the reason of its end. */
export interface StatusData extends Data {
  /** The status of the session. */
  status: Status;
  /** The status before. */
  previous_status: Status;
  /** Why the run ended; null while it has not. */
  stop_reason: StopReason | null;
  /** The rule that decided; null when the run starts. */
  resolved_by: string | null;
  /** The reason that the rule gave. */
  reason: string | null;
  /** The number of steps that the run has taken. */
  step_count: number;
  /** The wrap-ups of the execution, which `step_count` leaves out; absent if there are none. */
  wrap_ups?: number;
  /** The error, if the run failed. */
  error_message: string | null;
  /** The last text of the assistant, once the run has ended or paused. */
  last_response: string | null;
}

/** The model is about to be called. Not recorded: only live clients receive it. */
export interface StepStartedData extends Data {
  /** The step within its run, counted from 1. */
  step_number: number;
  /** The number of messages in the request. */
  message_count: number;
  /** The tools that the model may call. */
  available_tools: string[];
  /** The limit that has ended the run, if the step is its wrap-up; absent if it is not. */
  wrap_up?: string;
}

/** The model has answered, its calls have their results, and every rule was evaluated. */
export interface StepCompletedData extends Data {
  /** The step within its run, counted from 1. */
  step_number: number;
  /** Whether the model called tools. */
  has_tool_calls: boolean;
  /** The number of failures in this step. */
  errors: number;
  /** Why the model ended its answer; null if there is no complete answer. */
  finish_reason: "stop" | "length" | "tool_calls" | "content_filter" | "pause_turn" | "error" | "other" | null;
  /** Tokens and cost of this step; the cost in US dollars as decimal text, null if it is unknown. */
  usage: { input: number; output: number; total: number; cost: string | null };
  /** The active time of the step. */
  duration_ms: number;
  /** The outcome of the rules. */
  continuation: Continuation;
  /** The limit that has ended the run, if the step is its wrap-up; absent if it is not. */
  wrap_up?: string;
}

/** A tool call starts. It has `args_summary`, or `args` where the configuration asks for them. */
export interface ToolStartedData extends Data {
  /** The name of the tool. */
  tool: string;
  /** The provider's id of the call; `agent.tool.completed` has the same. */
  tool_call_id: string;
  /** The first three arguments, each value cut short. */
  args_summary?: string;
  /** All arguments; text if they are not a JSON object. */
  args?: Record<string, unknown> | string;
  /** The hooks that changed the arguments; absent if none did. */
  changed_by?: string[];
}

/** A tool call has its result: done, failed, denied, not run, or unknown. */
export interface ToolCompletedData extends Data {
  /** The name of the tool. */
  tool: string;
  /** The provider's id of the call. */
  tool_call_id: string;
  /** Whether the call succeeded. */
  success: boolean;
  /** Why it did not succeed. */
  error: string | null;
  /** The time that it took. */
  duration_ms: number;
  /** The beginning of its result. */
  result_summary: string;
  /** The hooks that made or replaced the result; absent if none did. */
  changed_by?: string[];
}

/** A tool call, or the run itself, waits for a person. Arguments as in `agent.tool.started`. */
export interface ApprovalRequestedData extends Data {
  /** The id of the question, by which it is decided. */
  question_id: string;
  /** The name of the tool; null if the question is about the run itself. */
  tool: string | null;
  /** The provider's id of the call; null if the question is about the run itself. */
  tool_call_id: string | null;
  /** The question; it names the tool and never its arguments. */
  question: string;
  /** The first three arguments, each value cut short. */
  args_summary?: string;
  /** All arguments; text if they are not a JSON object. */
  args?: Record<string, unknown> | string;
  /** The hooks that changed the arguments; absent if none did. */
  changed_by?: string[];
}

/** A person answered a question. */
export interface ApprovalDecidedData extends Data {
  /** The id of the question. */
  question_id: string;
  /** The name of the tool; null if the question is about the run itself. */
  tool: string | null;
  /** The provider's id of the call; null if the question is about the run itself. */
  tool_call_id: string | null;
  verdict: "approved" | "denied" | "edited";
  /** The name of the person. */
  by: string;
  /** The reason that the person gave. */
  reason: string | null;
}

/** A failure is retried, after a wait where a provider failed. */
export interface RetryData extends Data {
  /** The number of this retry, counted from 1. */
  attempt: number;
  /** The number of retries that the policy allows. */
  max: number;
  /** The planned wait before the next model call. */
  wait_seconds: number;
  /** The type of the failure. */
  error_type: "tool" | "model" | "validation" | "rate_limit" | "timeout" | "unknown";
}

/** A piece of the answer, as it streams in. Not recorded: only live clients receive it. */
export interface StreamChunkData extends Data {
  /** Whether it is part of the answer or of the model's reasoning. */
  kind: "text" | "reasoning";
  /** The text; empty in the last one of a step. */
  chunk: string;
  /** The position within its step, counted from 0. */
  chunk_index: number;
  /** Whether it is the last one of its step. */
  is_complete: boolean;
}

/** The evaluation of every rule after a step: why the run continues, or why it ends. Debug preset only. */
export interface ContinuationData extends Data, Continuation {
  /** The step within its run, counted from 1. */
  step_number: number;
  /** The evaluation of each rule, in the order of the rules. */
  evaluations: Evaluation[];
}

/** Any other event, in the debug preset. */
export interface EventData extends Data {
  /** The class of the event in `whyloop.events`. */
  name: string;
  /** Its public fields, without those that the envelope has. */
  fields: Record<string, unknown>;
}

/** The fields that all envelopes have. */
export interface EnvelopeOf<Event extends string, Fields extends Data> {
  /** The version of the envelope. */
  v: 1;
  /** The name of the event. */
  event: Event;
  /** Increases by one over numbered envelopes; all others carry the number of the last numbered one. */
  seq: number;
  /** The time of the event: UTC with milliseconds, 2026-01-16T10:05:01.123Z */
  timestamp: string;
  /** The session of the event. */
  agent_id: string;
  /** The name of the session for clients; its `agent_id`, unless another one was configured. */
  session_id: string;
  /** The run: the work on one question. */
  execution_id: string;
  /** The fields of this event. */
  data: Fields;
}

/** Something that happened in a session. */
export type Envelope =
  | EnvelopeOf<"agent.status", StatusData>
  | EnvelopeOf<"agent.step.started", StepStartedData>
  | EnvelopeOf<"agent.step.completed", StepCompletedData>
  | EnvelopeOf<"agent.tool.started", ToolStartedData>
  | EnvelopeOf<"agent.tool.completed", ToolCompletedData>
  | EnvelopeOf<"agent.approval.requested", ApprovalRequestedData>
  | EnvelopeOf<"agent.approval.decided", ApprovalDecidedData>
  | EnvelopeOf<"agent.retry", RetryData>
  | EnvelopeOf<"agent.stream.chunk", StreamChunkData>
  | EnvelopeOf<"agent.continuation", ContinuationData>
  | EnvelopeOf<"agent.event", EventData>;
