/**
 * One live stream for many listeners: the list of sessions, and the envelopes of those that are followed.
 *
 * A shared worker runs one of these for all tabs of a browser, which open at most six connections to a server.
 * Without shared workers each tab runs its own, over a WebSocket.
 */

import type { SessionSummary } from "./api";

/** What a listener wants to hear of; the cursor is that of the history that it has. */
export interface Wanted {
  list: boolean;
  sessions: Record<string, string | null>;
}

export type Connection = "connecting" | "live" | "lost" | "refused";

export type News =
  | { kind: "connection"; state: Connection; retryAt: number | null }
  | { kind: "list"; sessions: SessionSummary[]; deleted: string[] }
  | { kind: "envelope"; session: string; envelope: unknown };

/** Opens a connection; the promise ends with it, or fails. */
export type Open = (query: string, on: { open(): void; message(event: string, data: string): void }, signal: AbortSignal) => Promise<void>;

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
// Several views ask for something in the same moment: they share a connection.
const GATHERING = 30;

export class Stream {
  #listeners = new Map<object, { wanted: Wanted; tell: (news: News) => void }>();
  #cursors = new Map<string, string>();
  #connection = new AbortController();
  #following = "";
  #failures = 0;
  #state: News & { kind: "connection" } = { kind: "connection", state: "connecting", retryAt: null };
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly open: Open) {}

  /** Tell a listener from now on about what it wants; calling it again changes that. */
  listen(listener: object, wanted: Wanted, tell: (news: News) => void): void {
    this.#listeners.set(listener, { wanted, tell });
    tell(this.#state);
    this.#update();
  }

  /** Tell a listener nothing any more. */
  leave(listener: object): void {
    this.#listeners.delete(listener);
    this.#update();
  }

  /** Connect again now instead of waiting. */
  retry(): void {
    this.#failures = 0;
    this.#following = "";
    this.#update();
  }

  #update(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), GATHERING);
  }

  /** Connect anew if others are followed than before. */
  #connect(): void {
    const all = [...this.#listeners.values()].map(({ wanted }) => wanted);
    const list = all.some((wanted) => wanted.list);
    const sessions = new Map<string, string | null>();
    for (const wanted of all) {
      for (const [id, cursor] of Object.entries(wanted.sessions)) {
        sessions.set(id, this.#cursors.get(id) ?? cursor);
      }
    }
    for (const id of this.#cursors.keys()) if (!sessions.has(id)) this.#cursors.delete(id);
    const following = JSON.stringify([list, [...sessions.keys()].sort()]);
    if (following === this.#following) return;
    this.#following = following;
    this.#connection.abort();
    if (!list && sessions.size === 0) return;
    const query = new URLSearchParams();
    if (list) query.append("list", "true");
    for (const [id, cursor] of sessions) {
      query.append("session", id);
      query.append("after", cursor ?? "");
    }
    void this.#run(query.toString());
  }

  async #run(query: string): Promise<void> {
    const connection = (this.#connection = new AbortController());
    if (this.#state.state !== "live") this.#report("connecting");
    let failure: unknown = null;
    try {
      await this.open(
        query,
        {
          open: () => {
            this.#failures = 0;
            this.#report("live");
          },
          message: (event, data) => !connection.signal.aborted && this.#receive(event, data),
        },
        connection.signal,
      );
    } catch (cause) {
      failure = cause;
    }
    if (connection.signal.aborted) return;
    this.#following = "";
    if ((failure as { status?: number } | null)?.status === 401) {
      this.#report("refused");
      return;
    }
    // Random, so that clients that lost their connections together do not return together.
    const backoff = Math.min(FIRST_WAIT * 2 ** this.#failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    const wait = backoff + ((failure as { wait?: number } | null)?.wait ?? 0);
    this.#failures += 1;
    this.#report("lost", Date.now() + wait);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #receive(event: string, data: string): void {
    const value = JSON.parse(data);
    if (event === "list") {
      this.#tell({ kind: "list", sessions: value.sessions, deleted: value.deleted ?? [] }, (wanted) => wanted.list);
    } else if (event === "envelope") {
      if (value.cursor) this.#cursors.set(value.session, value.cursor);
      const news: News = { kind: "envelope", session: value.session, envelope: value.envelope };
      this.#tell(news, (wanted) => value.session in wanted.sessions);
    }
  }

  #report(state: Connection, retryAt: number | null = null): void {
    this.#state = { kind: "connection", state, retryAt };
    this.#tell(this.#state, () => true);
  }

  #tell(news: News, concerns: (wanted: Wanted) => boolean): void {
    for (const { wanted, tell } of this.#listeners.values()) if (concerns(wanted)) tell(news);
  }
}

/** Return the milliseconds after which a busy server wants a client to come back; 0 if it names none. */
function namedWait(answer: Response): number {
  const seconds = answer.status === 503 ? Number(answer.headers.get("retry-after")) : 0;
  return Math.min(1000 * (seconds || 0), LONGEST_WAIT);
}

/** One server-sent event. */
export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

/** Read server-sent events with `fetch`, which can send headers where an `EventSource` cannot; return at their end. */
export async function readEvents(
  url: string | URL, options: RequestInit, onOpen: () => void, onEvent: (event: ServerEvent) => void,
): Promise<void> {
  const headers = { accept: "text/event-stream", ...(options.headers as object) };
  const answer = await fetch(url, { cache: "no-store", ...options, headers });
  if (!answer.ok || !answer.body) {
    const problem = new Error(`the server answered ${answer.status}`);
    throw Object.assign(problem, { status: answer.status, wait: namedWait(answer) });
  }
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = eventOf(block);
      if (event) onEvent(event);
    }
  }
}

function eventOf(block: string): ServerEvent | null {
  const lines = block.split("\n");
  const values = (name: string): string[] =>
    lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart());
  const data = values("data");
  return data.length ? { id: values("id")[0] ?? "", event: values("event")[0] ?? "message", data: data.join("\n") } : null;
}

/** Open the live stream as server-sent events. */
export function eventStream(base: string, headers: () => Record<string, string>): Open {
  return (query, on, signal) =>
    readEvents(new URL(`live?${query}`, base), { headers: headers(), signal }, on.open, ({ event, data }) => on.message(event, data));
}

/** Return a text as base64url, which may be the name of a protocol. */
function coded(text: string): string {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

/** Open the same stream as a WebSocket. It cannot send headers, so the token is the name of a protocol. */
export function webSocket(base: string, token: () => string): Open {
  return (query, on, signal) =>
    new Promise((resolve, reject) => {
      const url = new URL(`live?${query}`, base);
      url.protocol = url.protocol.replace("http", "ws");
      const socket = new WebSocket(url, token() ? ["whyloop", `bearer.${coded(token())}`] : []);
      signal.addEventListener("abort", () => socket.close());
      socket.onopen = () => on.open();
      socket.onmessage = ({ data }) => {
        const { event, data: value } = JSON.parse(data);
        on.message(event, JSON.stringify(value));
      };
      socket.onerror = () => reject(new Error("the connection failed"));
      socket.onclose = ({ code }) => (code === 4401 ? reject(Object.assign(new Error("not authenticated"), { status: 401 })) : resolve());
    });
}
