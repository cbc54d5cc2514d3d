/**
 * The live view of one session on a whyloop server: its history, the envelopes after it, and the history
 * again when a run begins, which brings the question, and when it ends.
 *
 * @typedef {import("./view.js").View} View
 * @typedef {import("./index.js").Envelope} Envelope
 */

import { NUMBERED } from "./events.js";
import { reduce } from "./reduce.js";
import { addMessage, reconcile, removeMessage, viewOf } from "./view.js";

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
  /** @type {View} */
  let view = viewOf();
  /** @type {Envelope[]} The envelopes that the history which arrives next may lack. */
  let unstored = [];
  let source = null;
  let failures = 0;
  let added = 0;
  let isLoading = false;
  let isFilling = false;
  let isClosed = false;
  // The latest request for the history, or the wait before the next one. Earlier ones no longer count.
  let current = new AbortController();

  function supersede() {
    current.abort();
    current = new AbortController();
    return current.signal;
  }

  async function get(path, signal) {
    const credentials = withCredentials ? "include" : "same-origin";
    const accepting = { accept: "application/json", ...headers };
    const answer = await fetch(`${url}/${path}`, { headers: accepting, credentials, cache: "no-store", signal });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.json();
  }

  async function load() {
    if (isClosed) return;
    const signal = supersede();
    let after, latest;
    isLoading = true;
    try {
      const stored = await get("messages", signal);
      if (signal.aborted) return;
      isLoading = false;
      after = stored.after ?? null;
      latest = replay(stored.messages);
    } catch (cause) {
      if (!signal.aborted) tryAgain(new Error(`The history could not be loaded: ${cause.message}`, { cause }));
      return;
    }
    if (source) failures = 0;
    else open(after);
    if (!isClosed) show(latest);
  }

  /** Return the view of the stored messages, with the envelopes applied that they lack. */
  function replay(stored) {
    let latest = reconcile(view, stored);
    unstored = unstored.filter((envelope) => {
      const before = latest;
      latest = reduce(before, envelope);
      return latest !== before;
    });
    return latest;
  }

  function open(after) {
    const query = after === null ? "" : `?after=${encodeURIComponent(after)}`;
    let opened;
    try {
      opened = new EventSource(`${url}/events${query}`, { withCredentials, headers });
    } catch (cause) {
      tryAgain(new Error(`The connection could not be opened: ${cause.message}`, { cause }));
      return;
    }
    opened.onopen = () => {
      failures = 0;
    };
    opened.onmessage = ({ data }) => {
      if (opened === source) receive(data);
    };
    opened.onerror = () => {
      // Until it is closed the browser connects again by itself, and the server sends what was missed.
      if (opened !== source || opened.readyState !== CLOSED) return;
      source = null;
      tryAgain(new Error("The connection was closed"));
    };
    source = opened;
  }

  function receive(data) {
    let envelope;
    try {
      envelope = JSON.parse(data);
    } catch (cause) {
      onError(new Error(`An envelope could not be read: ${cause.message}`, { cause }));
      return;
    }
    apply(envelope);
    if (isFilling || !NUMBERED.has(envelope?.event)) return;
    const run = view.runs.find(({ gap }) => gap);
    if (run) fill(run);
  }

  function apply(envelope) {
    const latest = reduce(view, envelope);
    const isNews = latest !== view;
    const status = envelope?.event === "agent.status" ? envelope.data?.status : undefined;
    const begins = isNews && status === BEGINNING;
    const ends = ENDINGS.includes(status);
    if (begins || ends || (isNews && !isLoading && NUMBERED.has(envelope.event))) {
      // A numbered envelope is recorded before it is sent: a history that is requested from now on has it.
      unstored = unstored.filter((earlier) => earlier.agent_id !== envelope.agent_id);
    }
    if (isNews && !ends) unstored.push(envelope);
    // No envelope carries the question of a run. It is stored by the time that the run begins.
    if (begins || ends) load();
    if (isNews) show(latest);
  }

  /** Request the envelopes after the last one that was applied; if some are still missing, the history. */
  async function fill({ execution_id: executionId, gap: { first } }) {
    isFilling = true;
    try {
      let after = `${encodeURIComponent(executionId)}:${first - 1}`;
      let hasMore = true;
      while (hasMore && !isClosed) {
        const page = await get(`events?after=${encodeURIComponent(after)}`);
        if (isClosed) return;
        page.events.forEach(apply);
        hasMore = page.has_more === true;
        after = page.next;
      }
      if (view.runs.some((run) => run.execution_id === executionId && run.gap?.first === first)) load();
    } catch (cause) {
      if (!isClosed) tryAgain(new Error(`Envelopes could not be loaded: ${cause.message}`, { cause }));
    } finally {
      isFilling = false;
    }
  }

  function tryAgain(error) {
    const signal = supersede();
    // Random, so that clients that lost their connections together do not return together.
    const wait = Math.min(FIRST_WAIT * 2 ** failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    failures += 1;
    setTimeout(() => signal.aborted || load(), wait);
    onError(error);
  }

  function show(latest) {
    view = latest;
    onChange(view);
  }

  load();
  return {
    get view() {
      return view;
    },
    add(message) {
      added += 1;
      const timestamp = new Date().toISOString();
      const own = /** @type {import("./index.js").UiMessage} */ ({ id: `local:${added}`, role: "user", content: "", timestamp, ...message });
      show(addMessage(view, own));
      return () => {
        const without = removeMessage(view, own);
        if (without !== view) show(without);
      };
    },
    refresh: load,
    close() {
      isClosed = true;
      current.abort();
      source?.close();
      source = null;
    },
  };
}
