/** The server's API: the types of its answers, and one function that requests them. */

import { signal } from "@preact/signals";

import { parse } from "./json";
import { saved, savedAnswer } from "./saved";

export type Status = "pending" | "in_progress" | "paused" | "completed" | "stopped" | "failed";
export type Decision = "forbid" | "request" | "stop" | "allow";

/** A session as the list shows it. */
export interface SessionSummary {
  agent_id: string;
  status: Status;
  stop_reason: string | null;
  resolved_by: string | null;
  reason: string | null;
  title: string;
  last_query: string;
  agent: string;
  step_count: number;
  step_limit: number | null;
  step_marks: string;
  pending: number;
  tokens: number;
  tokens_known: boolean;
  cost: string | null;
  active_seconds: number;
  started_at: string;
  updated_at: string;
  parent_agent_id: string | null;
  is_running: boolean;
  version: number;
  metadata: Record<string, unknown>;
}

export interface SessionPage {
  sessions: SessionSummary[];
  next: string | null;
}

/** A question that waits for a person. */
export interface PendingCall {
  id: string;
  tool: string | null;
  tool_call_id: string | null;
  arguments: Record<string, unknown> | null;
  question: string;
}

export interface SessionState {
  session: SessionSummary;
  execution_id: string;
  last_response: string | null;
  pending_calls: PendingCall[];
}

export interface Question extends PendingCall {
  agent_id: string;
  title: string;
  asked_at: string;
  args_summary: string;
  can_edit: boolean;
}

export interface QuestionPage {
  questions: Question[];
  total: number;
}

export interface Stats {
  days: { day: string; counts: { completed: number; limit: number; error: number; person: number } }[];
  rules: { rule: string; count: number }[];
  statuses: Record<string, number>;
  waiting: number;
  total: number;
}

/** The vote of one rule after a step. */
export interface Evaluation {
  criterion: string;
  decision: Decision;
  reason: string;
  stop_reason?: string | null;
  exhausted?: boolean;
  pauses?: boolean;
  context?: Record<string, unknown>;
}

export interface Outcome {
  decision: Decision;
  should_continue: boolean;
  resolved_by: string | null;
  stop_reason: string | null;
  pauses?: boolean;
  evaluations: Evaluation[];
  /** It was recorded without the agent, whose other rules were not asked. */
  partial?: boolean;
}

export type CallStatus =
  | "succeeded" | "failed" | "denied" | "not_completed" | "waiting" | "started" | "not_started";

export interface Call {
  id: string;
  name: string;
  status: CallStatus;
  success: boolean;
  error: string | null;
  started_at: string | null;
  duration_ms: number;
  approvals: { verdict: string; by: string; reason?: string | null; at?: string }[];
  /** In a brief trace. */
  args_summary?: string;
  result_summary?: string | null;
  /** In a whole step. */
  arguments?: Record<string, unknown> | string | null;
  changes?: Record<string, unknown>[];
  result?: string | null;
  result_changed_by?: string[];
}

export interface Failure {
  type?: string;
  message?: string;
  tool_call_id?: string | null;
  /** The message of an exception that a tool or a hook raised itself; `message` has its class. */
  raised?: string;
}

/** Return the message of the exception that a call of a step failed with, if it was the tool's own. */
export function raisedBy(step: { failures: readonly Failure[] } | undefined, call: string): string | undefined {
  return step?.failures.find(({ tool_call_id: id }) => id === call)?.raised;
}

export interface Usage {
  input: number;
  output: number;
  total: number;
  cost?: string | null;
  /** False if an answer did not report its tokens: then there were more. */
  reported?: boolean;
}

export interface Step {
  /** Its number in the session, from 1. */
  index: number;
  /** Its number in its execution. */
  number: number;
  execution_id: string;
  type: "tool_execution" | "final" | "error";
  started_at: string;
  completed_at: string | null;
  answered_at: string | null;
  duration_ms: number;
  backoff_seconds: number;
  waited_seconds: number;
  finish_reason: string | null;
  usage: Usage;
  tool_calls: Call[];
  failures: Failure[];
  interrupted: string | null;
  wrap_up: string | null;
  outcome: Outcome | null;
}

/** A step with what the model saw. */
export interface WholeStep extends Step {
  text?: string | null;
  reasoning?: string | null;
  request_sent?: SentRequest;
}

/** A message as it was sent to the model. */
export interface SentMessage {
  role: string;
  content?: string | { type?: string; text?: string; [field: string]: unknown }[] | null;
  tool_calls?: { id: string; name: string; arguments: unknown }[];
  tool_call_id?: string | null;
  tool?: string | null;
  reasoning?: string | null;
}

/** What the model saw. */
export interface SentRequest {
  instructions: string | null;
  tools: { name?: string; description?: string; [field: string]: unknown }[] | null;
  /** The last ones; `message_count` is how many there were. */
  messages: SentMessage[];
  message_count: number;
  output: unknown;
  tool_choice: string | null;
  max_tokens: number | null;
  changed_by: string[];
  incomplete?: boolean;
}

export interface Execution {
  id: string;
  query: string;
  status: Status;
  stop_reason: string | null;
  resolved_by: string | null;
  reason: string | null;
  first_step: number;
  step_count: number;
  started_at: string;
  ended_at: string | null;
}

export interface Limit {
  rule: string;
  option: "max_steps" | "max_tokens" | "timeout" | "cumulative_timeout" | "max_cost";
  unit: "steps" | "tokens" | "seconds" | "usd";
  limit: number;
  used: number;
  granted: number;
}

export interface NextAction {
  kind: "ask" | "decide" | "change_policy" | "change_rule" | "grant" | "resume";
  text: string;
  code: string | null;
  question_id: string | null;
  grant: { steps?: number; tokens?: number; seconds?: number; usd?: string | number } | null;
}

export interface Trace {
  agent_id: string;
  agent: string;
  status: Status;
  stop_reason: string | null;
  resolved_by: string | null;
  reason: string | null;
  headline: string;
  explanation: string;
  next_actions: NextAction[];
  executions: Execution[];
  limits: Limit[];
  rules: string[];
  steps: Step[];
  open_step: Step | null;
  step_count: number;
  has_more: boolean;
  next: number | null;
  usage: Usage;
  times: {
    session_started_at: string;
    execution_started_at: string;
    updated_at: string;
    active_seconds: number;
    backoff_seconds: number;
    waiting_seconds: number;
    wall_seconds: number;
  };
}

export interface Amounts {
  steps: number | null;
  tokens: number | null;
  seconds: number | null;
  cost: string | null;
}

/** How an execution would have ended under other limits. */
export interface WhatIf {
  status: Status;
  stopped_at: number | null;
  stop_reason: string | null;
  resolved_by: string | null;
  reason: string | null;
  beyond: boolean;
  assumed_from: number | null;
  is_cut: boolean;
  was_completed: boolean;
  saved: Amounts;
  used: Amounts;
  votes: Record<string, string>;
  reasons: Record<string, string[]>;
}

/** What each value of a limit would have done to many runs. */
export interface Survey {
  limit: string;
  runs: number;
  completed: number;
  /** What all of the runs used, as far as it is known. */
  used: Amounts;
  /** The lowest value that cuts no completed run. */
  recommended: number | null;
  interval: [number, number] | null;
  rows: { value: number; cut: number; completed: number; beyond: number; saved: Amounts }[];
  cut_below: Record<string, number>;
  problems: number;
}

export type Right = "send" | "decide" | "inspect" | "manage";

export interface Info {
  version: string;
  store: string;
  can_run: boolean;
  /** The rights of the reader. */
  may: readonly Right[];
  user: string | null;
}

/** Return whether the reader has a right, as far as it is known yet: the server refuses what is not allowed. */
export function may(info: Info | null, right: Right): boolean {
  return info === null || info.may.includes(right);
}

/** A refusal of the server, or a lost connection (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly type: string,
    message: string,
  ) {
    super(message);
  }
}

/** Whether the server refused this client because it does not know it. */
export const refused = signal(false);

const TOKEN = "whyloop.token";

/** Return the token of this tab; "" if the server needs none. */
export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Keep the token for this tab. */
export function setToken(value: string): void {
  sessionStorage.setItem(TOKEN, value);
}

/** Return the headers that identify this client. */
export function authorization(): Record<string, string> {
  const value = token();
  return value ? { authorization: `Bearer ${value}` } : {};
}

/** The server that requests go to: its address, with a slash at its end, and the headers that it wants. */
export interface Server {
  readonly base: string;
  headers(): Record<string, string>;
}

/** The server that sent the page. */
export const own: Server = { base: "", headers: authorization };

/** The address of a session, relative to its server. */
export function sessionPath(id: string): string {
  return `sessions/${encodeURIComponent(id)}`;
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** Return a query string without the empty values. */
export function queryText(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}

/** Request something; an answer that is not OK is an `ApiError` with the server's sentence. */
export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal, server = own): Promise<T> {
  return request<T>(`${path}${queryText(query)}`, { signal: signal ?? null }, server);
}

const infos = new WeakMap<Server, Promise<Info | null>>();

/** Return what a server is and what the reader may do there, asked once or `anew`; null if it does not say. */
export function readInfo(server = own, anew = false): Promise<Info | null> {
  const known = anew ? undefined : infos.get(server);
  if (known) return known;
  const info = get<Info>("info", {}, undefined, server).catch(() => {
    infos.delete(server);
    return null;
  });
  infos.set(server, info);
  return info;
}

/** Change something. The key makes a repeated request harmless. */
export async function post<T>(path: string, body: unknown, server = own): Promise<T> {
  const headers = { "content-type": "application/json", "idempotency-key": newKey() };
  return request<T>(path, { method: "POST", headers, body: JSON.stringify(body) }, server);
}

/** Return a key that no other request has; `randomUUID` is missing where a page was not sent over HTTPS. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-");
}

async function request<T>(path: string, options: RequestInit, server: Server): Promise<T> {
  if (saved) {
    const found = options.method ? undefined : savedAnswer(path);
    if (found === undefined) throw new ApiError(404, "not_saved", "The saved file does not have this.");
    return found as T;
  }
  let answer: Response;
  try {
    const headers = { accept: "application/json", ...server.headers(), ...(options.headers as object) };
    answer = await fetch(`${server.base}${path}`, { cache: "no-store", ...options, headers });
  } catch (cause) {
    if ((cause as Error).name === "AbortError") throw cause;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  if (answer.status === 401) refused.value = true;
  if (answer.ok) return parse(await answer.text()) as T;
  const problem = await answer.json().catch(() => null);
  const { type = "error", message = `The server answered ${answer.status}.` } = problem?.error ?? {};
  throw new ApiError(answer.status, type, message);
}
