// Envelopes, histories, and a world around the live view of a session that does as it is told.
import { followSession } from "../../src/whyloop/ui/session.js";

const AT = "2026-01-16T10:00:00.000Z";
export const HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe \u0000 \u2028 __proto__ 👋🏽";

export function envelope(event, seq, data = {}, execution_id = "e1") {
  const told = { v: 1, event: `agent.${event}`, seq, timestamp: AT, agent_id: "a1", session_id: "a1" };
  return { ...told, execution_id, data };
}

export const started = (seq, id) => envelope("status", seq, { status: "in_progress", step_count: 0 }, id);
export const chunk = (seq, words, index = 0, id = "e1") =>
  envelope("stream.chunk", seq, { chunk: words, chunk_index: index, is_complete: false }, id);
export const ended = (seq, status = "completed", id = "e1") =>
  envelope("status", seq, { status, stop_reason: status === "paused" ? null : status, step_count: 1 }, id);

export function question(content, place = 0) {
  return { id: `a1:${place}`, role: "user", content, timestamp: AT };
}

export function answer(content, id = "e1", stop_reason = "completed") {
  const continuation = { should_continue: false, stop_reason, resolved_by: null };
  const metadata = { execution_id: id, step_number: 1, continuation };
  return { id: `${id}:1:assistant`, role: "assistant", content, timestamp: AT, metadata };
}

/** The status of a run that a history knows to be under way. */
export function underWay(id = "e1", content = "Thinking…") {
  const metadata = { execution_id: id, step_number: 1, status_type: "thinking", agent_id: "a1", seq: 0 };
  return { id: `${id}:status`, role: "status", content, timestamp: AT, metadata };
}

export const CALL = { tool: "pay", tool_call_id: "c1" };
export const WAITING = [
  question("Pay?"),
  { ...answer(""), metadata: { execution_id: "e1", step_number: 1 } },
  {
    ...{ id: "e1:1:tool:c1", role: "status", content: "pay()?", timestamp: AT },
    metadata: {
      ...answer("", "e1", null).metadata,
      ...{ status_type: "tool_call", tool_name: "pay", tool_call_id: "c1", waiting: true },
    },
  },
];

/** Everything around a view: what it asked for, and what the test makes of that. */
export class World {
  requests = [];
  sources = [];
  timers = [];
  seen = [];
  errors = [];

  constructor(options = {}) {
    const { requests, sources } = this;
    this.view = followSession("/agents/sessions/a%201", (messages) => this.seen.push(messages), {
      fetch: (address, init) =>
        new Promise((resolve, reject) => requests.push({ address, init, resolve, reject })),
      EventSource: class {
        readyState = 1;
        constructor(address, init) {
          sources.push(Object.assign(this, { address, init }));
        }
        close() {
          this.readyState = 2;
        }
      },
      setTimeout: (action, wait) => this.timers.push({ action, wait }),
      onError: (error) => this.errors.push(error.message),
      ...options,
    });
  }

  get words() {
    return this.view.messages.map((message) => message.content);
  }

  /** The history that was asked for last, or the one with this number. */
  async history(messages, after = null, number = this.requests.length - 1) {
    this.requests[number].resolve({ ok: true, json: async () => ({ messages, after }) });
    await settled();
  }

  async refuse(status, number = this.requests.length - 1) {
    this.requests[number].resolve({ ok: false, status });
    await settled();
  }

  async lose(number = this.requests.length - 1) {
    this.requests[number].reject(new TypeError("fetch failed"));
    await settled();
  }

  hear(...envelopes) {
    for (const told of envelopes) this.sources.at(-1).onmessage({ data: JSON.stringify(told) });
  }

  cut(readyState) {
    Object.assign(this.sources.at(-1), { readyState }).onerror({});
  }

  /** The time passes that the latest timer waits for. */
  wait() {
    this.timers.at(-1).action();
  }
}

export const settled = () => new Promise(setImmediate);

export async function connected(messages = [], after = null) {
  const world = new World();
  await world.history(messages, after);
  return world;
}
