/**
 * The live view of one session on a whyloop server: its history, the envelopes after it, and the history
 * again when a run begins, which brings the question, when it ends, and after a step whose text has gaps.
 *
 * @typedef {import("./view.js").View} View
 * @typedef {import("./index.js").Envelope} Envelope
 * @typedef {import("./index.js").UiMessage} UiMessage
 */

import { GAP, NUMBERED } from "./events.js";
import { reconcile, viewOf } from "./history.js";
import { assistantId, metadataOf } from "./message.js";
import { reduce } from "./reduce.js";
import { addMessage, removeMessage } from "./view.js";

const ENDINGS = ["completed", "stopped", "failed", "paused"];
const BEGINNING = "in_progress";
const CLOSED = 2;
const FIRST_WAIT = 1_000;
const LONGEST_WAIT = 30_000;

/**
 * Follow a session; `onChange` is called with each new view of it.
 * @type {typeof import("./session.js").followSession}
 */
export function followSession(url, onChange, options = {}) {
  const { headers, withCredentials = false, onError = () => {} } = options;
  const { fetch = globalThis.fetch, setTimeout = globalThis.setTimeout } = options;
  const { EventSource = globalThis.EventSource } = options;
  for (const [name, given] of Object.entries({ fetch, EventSource })) {
    if (typeof given !== "function") {
      throw new TypeError(`There is no ${name} here: pass one, followSession(url, onChange, { ${name} })`);
    }
  }
  const platform = { headers, withCredentials, onError, fetch, setTimeout, EventSource };
  const session = new Session(url, onChange, platform);
  session.load();
  return {
    get view() {
      return session.view;
    },
    add: (message) => session.add(message),
    refresh: () => session.load(),
    close: () => session.close(),
  };
}

class Session {
  /** @type {View} */
  view = viewOf();
  /** @type {Envelope[]} The envelopes that the history which arrives next may lack. */
  #unstored = [];
  #url;
  #onChange;
  #platform;
  #source = null;
  #failures = 0;
  #added = 0;
  #isLoading = false;
  #isFilling = false;
  #isClosed = false;
  // The latest request for the history, or the wait before the next one. Earlier ones no longer count.
  #current = new AbortController();

  constructor(url, onChange, platform) {
    this.#url = url;
    this.#onChange = onChange;
    this.#platform = platform;
  }

  /** Show a message of the client's own, and return a function that removes it. */
  add(message) {
    this.#added += 1;
    const known = { id: `local:${this.#added}`, timestamp: new Date().toISOString() };
    /** @type {UiMessage} */
    const own = { ...known, role: "user", content: "", ...message };
    this.#show(addMessage(this.view, own));
    return () => {
      const without = removeMessage(this.view, own);
      if (without !== this.view) this.#show(without);
    };
  }

  close() {
    this.#isClosed = true;
    this.#current.abort();
    this.#source?.close();
    this.#source = null;
  }

  #show(view) {
    this.view = view;
    this.#onChange(view);
  }

  // The history

  async load() {
    if (this.#isClosed) return;
    const signal = this.#supersede();
    let after, latest;
    this.#isLoading = true;
    try {
      const stored = await this.#get("messages", signal);
      if (signal.aborted) return;
      this.#isLoading = false;
      after = stored.after ?? null;
      latest = this.#replay(stored.messages);
    } catch (cause) {
      if (!signal.aborted) this.#tryAgain("The history could not be loaded", cause);
      return;
    }
    if (this.#source) this.#failures = 0;
    else this.#open(after);
    if (!this.#isClosed) this.#show(latest);
  }

  /** End the request for the history, or the wait for the next one. */
  #supersede() {
    this.#current.abort();
    this.#current = new AbortController();
    return this.#current.signal;
  }

  async #get(path, signal = undefined) {
    const { fetch, headers, withCredentials } = this.#platform;
    const credentials = withCredentials ? "include" : "same-origin";
    const accepting = { accept: "application/json", ...headers };
    const options = { headers: accepting, credentials, cache: "no-store", signal };
    const answer = await fetch(`${this.#url}/${path}`, options);
    if (!answer.ok) {
      // A server that is busy says when to come back.
      const wait = answer.status === 503 ? 1000 * Number(answer.headers?.get("retry-after")) : 0;
      throw Object.assign(new Error(`the server answered ${answer.status}`), { wait: wait || 0 });
    }
    return answer.json();
  }

  /** Return the view of the stored messages, with the envelopes applied that they lack. */
  #replay(stored) {
    let latest = reconcile(this.view, stored);
    this.#unstored = this.#unstored.filter((envelope) => {
      const before = latest;
      latest = reduce(before, envelope);
      return latest !== before;
    });
    return latest;
  }

  #tryAgain(problem, cause = undefined) {
    const { setTimeout } = this.#platform; // A browser's own can only be called as a plain function.
    const signal = this.#supersede();
    // Random, so that clients that lost their connections together do not reconnect together.
    const backoff = Math.min(FIRST_WAIT * 2 ** this.#failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    const named = Math.min(cause?.wait ?? 0, LONGEST_WAIT);
    const wait = named > 0 ? named + backoff : backoff;
    this.#failures += 1;
    setTimeout(() => signal.aborted || this.load(), wait);
    this.#report(problem, cause);
  }

  #report(problem, cause) {
    this.#platform.onError(cause ? new Error(`${problem}: ${cause.message}`, { cause }) : new Error(problem));
  }

  // The connection

  #open(after) {
    const { EventSource, headers, withCredentials } = this.#platform;
    const query = after === null ? "" : `?after=${encodeURIComponent(after)}`;
    let opened;
    try {
      opened = new EventSource(`${this.#url}/events${query}`, { withCredentials, headers });
    } catch (cause) {
      this.#tryAgain("The connection could not be opened", cause);
      return;
    }
    opened.onopen = () => {
      this.#failures = 0;
    };
    opened.onmessage = ({ data }) => {
      if (opened === this.#source) this.#receive(data);
    };
    opened.onerror = () => {
      // Until it is closed, the browser reconnects by itself, and the server sends the missed envelopes.
      if (opened !== this.#source || opened.readyState !== CLOSED) return;
      this.#source = null;
      this.#tryAgain("The connection was closed");
    };
    this.#source = opened;
  }

  #receive(data) {
    let envelope;
    try {
      envelope = JSON.parse(data);
    } catch (cause) {
      this.#report("An envelope could not be read", cause);
      return;
    }
    this.#apply(envelope);
    if (this.#isFilling || !NUMBERED.has(envelope?.event)) return;
    const run = this.view.runs.find(({ gap }) => gap);
    if (run) this.#fill(run);
  }

  #apply(envelope) {
    const latest = reduce(this.view, envelope);
    const isNews = latest !== this.view;
    const status = envelope?.event === "agent.status" ? envelope.data?.status : undefined;
    const begins = isNews && status === BEGINNING;
    const ends = ENDINGS.includes(status);
    if (begins || ends || (isNews && !this.#isLoading && NUMBERED.has(envelope.event))) {
      // A numbered envelope is recorded before it is sent: a history that is requested from now on has it.
      this.#unstored = this.#unstored.filter((earlier) => earlier.agent_id !== envelope.agent_id);
    }
    if (isNews && !ends) this.#unstored.push(envelope);
    // No envelope carries the question of a run. It is stored by the time that the run begins.
    if (begins || ends || (isNews && lacksText(latest, envelope))) this.load();
    if (isNews) this.#show(latest);
  }

  /** Request the envelopes after the last one that was applied; if some are still missing, the history. */
  async #fill({ execution_id: executionId, gap: { first } }) {
    this.#isFilling = true;
    try {
      let after = `${encodeURIComponent(executionId)}:${first - 1}`;
      let hasMore = true;
      while (hasMore && !this.#isClosed) {
        const page = await this.#get(`events?after=${encodeURIComponent(after)}`);
        if (this.#isClosed) return;
        page.events.forEach((envelope) => this.#apply(envelope));
        hasMore = page.has_more === true;
        after = page.next;
      }
      const isMissing = (run) => run.execution_id === executionId && run.gap?.first === first;
      if (this.view.runs.some(isMissing)) this.load();
    } catch (cause) {
      if (!this.#isClosed) this.#tryAgain("Envelopes could not be loaded", cause);
    } finally {
      this.#isFilling = false;
    }
  }
}

/** Return whether a step has ended whose text was not received whole: a page that came late lacks the beginning. */
function lacksText(view, { event, execution_id: executionId, data }) {
  if (event !== "agent.step.completed") return false;
  const id = assistantId(executionId, data?.step_number);
  const message = view.live.findLast((each) => each.id === id);
  return message !== undefined && (message.content + (metadataOf(message).reasoning ?? "")).includes(GAP);
}
