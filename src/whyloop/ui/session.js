/**
 * The live view of one session: its history, then what happens in it, and the history again when a run
 * begins, which brings the question, and when it ends.
 *
 * @typedef {import("./index.d.ts").UiMessage} UiMessage
 * @typedef {import("./index.d.ts").Envelope} Envelope
 */

import { reconcile, reduce } from "./index.js";

const ENDINGS = ["completed", "stopped", "failed", "paused"];
const BEGINNING = "in_progress";
const CLOSED = 2;
const FIRST_WAIT = 1_000;
const LONGEST_WAIT = 30_000;

/**
 * Show a session and keep it up to date; `onMessages` is called after each change.
 * @type {typeof import("./session.d.ts").followSession}
 */
export function followSession(url, onMessages, options = {}) {
  const { headers, withCredentials = false, onError = () => {} } = options;
  const { fetch = globalThis.fetch, setTimeout = globalThis.setTimeout } = options;
  const { EventSource = globalThis.EventSource } = options;
  for (const [name, given] of Object.entries({ fetch, EventSource })) {
    if (typeof given !== "function") {
      throw new TypeError(`There is no ${name} here: give one, followSession(url, onMessages, { ${name} })`);
    }
  }
  /** @type {readonly UiMessage[]} */
  let messages = [];
  /** @type {Envelope[]} What was heard of runs that have not ended: a history may lack a part of it. */
  let unfinished = [];
  let source = null;
  let failures = 0;
  let added = 0;
  let isClosed = false;
  // The latest request for the history, or the wait for the next. Those before it count no longer.
  let current = new AbortController();

  function supersede() {
    current.abort();
    current = new AbortController();
    return current.signal;
  }

  async function load() {
    if (isClosed) return;
    const signal = supersede();
    let after, latest;
    try {
      const credentials = withCredentials ? "include" : "same-origin";
      const answer = await fetch(`${url}/messages`, { headers, credentials, cache: "no-store", signal });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const stored = await answer.json();
      if (signal.aborted) return;
      after = stored.after ?? null;
      latest = retold(stored.messages);
    } catch (cause) {
      if (!signal.aborted) tryAgain(new Error(`The history could not be loaded: ${cause.message}`, { cause }));
      return;
    }
    if (source) failures = 0;
    else open(after);
    if (!isClosed) show(latest);
  }

  /** The history, and after it once more what was heard of runs that are under way. */
  function retold(stored) {
    const runs = new Set(unfinished.map((envelope) => envelope.execution_id));
    // With what these runs have said so far, a question that is not stored yet would seem to be answered.
    const others = messages.filter(({ role, metadata }) => role === "user" || !runs.has(metadata?.execution_id));
    return unfinished.reduce(folded, reconcile(others, stored));
  }

  function open(after) {
    const place = after === null ? "" : `?after=${encodeURIComponent(after)}`;
    let opened;
    try {
      opened = new EventSource(`${url}/events${place}`, { withCredentials, headers });
    } catch (cause) {
      tryAgain(new Error(`The connection could not be opened: ${cause.message}`, { cause }));
      return;
    }
    opened.onopen = () => {
      failures = 0;
    };
    opened.onmessage = ({ data }) => {
      if (opened === source) heard(data);
    };
    opened.onerror = () => {
      // While it is not closed the browser connects again by itself, and hears what it has missed.
      if (opened !== source || opened.readyState !== CLOSED) return;
      source = null;
      // Whatever the next history lacks is told again after it.
      unfinished = [];
      tryAgain(new Error("The connection was closed"));
    };
    source = opened;
  }

  function heard(data) {
    let envelope;
    try {
      envelope = JSON.parse(data);
    } catch (cause) {
      onError(new Error(`An envelope could not be read: ${cause.message}`, { cause }));
      return;
    }
    const latest = folded(messages, envelope);
    const isNews = latest !== messages;
    const status = envelope?.event === "agent.status" ? envelope.data?.status : undefined;
    const begins = isNews && status === BEGINNING;
    const ends = ENDINGS.includes(status);
    if (begins || ends) {
      // A session runs one execution at a time, so a history that is asked for from now on has all of this run,
      // and of those before it, also of one that was cut off. One that was asked for before may not.
      unfinished = unfinished.filter((told) => told.agent_id !== envelope.agent_id);
    }
    if (isNews && !ends) unfinished.push(envelope);
    // When a run begins, somebody else may have asked: no envelope tells the question, and it is stored by now.
    if (begins || ends) load();
    if (isNews) show(latest);
  }

  function tryAgain(error) {
    const signal = supersede();
    // Clients that were lost together do not come back together.
    const wait = Math.min(FIRST_WAIT * 2 ** failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    failures += 1;
    setTimeout(() => signal.aborted || load(), wait);
    onError(error);
  }

  function show(latest) {
    messages = latest;
    onMessages(messages);
  }

  load();
  return {
    get messages() {
      return messages;
    },
    add(message) {
      added += 1;
      const timestamp = new Date().toISOString();
      const own = { id: `local:${added}`, role: "user", content: "", timestamp, ...message };
      show([...messages, own]);
      return () => {
        if (messages.includes(own)) show(messages.filter((each) => each !== own));
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

/** @type {(messages: readonly UiMessage[], envelope: Envelope) => readonly UiMessage[]} */
function folded(messages, envelope) {
  return reduce(messages, envelope, { inOrder: true });
}
