// Envelopes, histories, and a fake platform for the live view of a session.

const AT = "2026-01-16T10:00:00.000Z";
export const HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe \u0000 \u2028 __proto__ 👋🏽";

export function envelope(event, seq, data = {}, execution_id = "e1") {
  const known = { v: 1, event: `agent.${event}`, seq, timestamp: AT, agent_id: "a1", session_id: "a1" };
  return { ...known, execution_id, data };
}

export const started = (seq, id) => envelope("status", seq, { status: "in_progress", step_count: 0 }, id);
/** A chunk of the run `id`, after its start. */
export const chunk = (text, index = 0, id = "e1", seq = 1) =>
  envelope("stream.chunk", seq, { kind: "text", chunk: text, chunk_index: index, is_complete: false }, id);
export const ended = (seq, status = "completed", id = "e1") =>
  envelope("status", seq, { status, stop_reason: status === "paused" ? null : status, step_count: 1 }, id);
export const CALL = { tool: "pay", tool_call_id: "c1" };
export const called = (seq) => envelope("tool.started", seq, CALL);
export const returned = (seq, result_summary = "paid") =>
  envelope("tool.completed", seq, { ...CALL, success: true, result_summary });

export function question(content, place = 0) {
  return { id: `a1:${place}`, role: "user", content, timestamp: AT };
}

export function answer(content, id = "e1", stop_reason = "completed") {
  const continuation = { should_continue: false, stop_reason, resolved_by: null };
  const metadata = { execution_id: id, step_number: 1, continuation };
  return { id: `${id}:1:assistant`, role: "assistant", content, timestamp: AT, metadata };
}

/** The status of a run in progress, from a history that has its envelopes up to `seq`. */
export function inProgress(id = "e1", content = "Thinking…", seq = 1) {
  const metadata = { execution_id: id, step_number: 1, status_type: "thinking", agent_id: "a1", seq };
  return { id: `${id}:status`, role: "status", content, timestamp: AT, metadata };
}

/** A history that is paused at the question `q1`, with the envelopes up to 3. */
export const PENDING = [
  question("Pay?"),
  { ...answer(""), metadata: { execution_id: "e1", step_number: 1, tool_calls: [{ id: "c1", name: "pay" }] } },
  {
    ...{ id: "e1:1:tool:c1", role: "status", content: "pay?", timestamp: AT },
    metadata: {
      ...answer("", "e1", null).metadata,
      ...{ status_type: "tool_call", tool_name: "pay", tool_call_id: "c1", question_id: "q1", seq: 3 },
    },
  },
];

/** A platform whose requests, connections and timers the test answers. */
export class Platform {
  requests = [];
  sources = [];
  timers = [];
  errors = [];

  /** The options of a session on this platform. */
  get options() {
    const { requests, sources } = this;
    return {
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
    };
  }

  /** Answer the latest request for the history, or the one with this number. */
  async history(messages, after = null, number = this.requests.length - 1) {
    this.requests[number].resolve({ ok: true, json: async () => ({ messages, after }) });
    await settled();
  }

  /** Answer the latest request, for envelopes. */
  async page(events, next = null, has_more = false) {
    this.requests.at(-1).resolve({ ok: true, json: async () => ({ events, next, has_more }) });
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

  receive(...envelopes) {
    for (const each of envelopes) this.sources.at(-1).onmessage({ data: JSON.stringify(each) });
  }

  cut(readyState) {
    Object.assign(this.sources.at(-1), { readyState }).onerror({});
  }

  /** Let the time of the latest timer pass. */
  wait() {
    this.timers.at(-1).action();
  }
}

export const settled = () => new Promise(setImmediate);
