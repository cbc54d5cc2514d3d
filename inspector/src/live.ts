/** What happens on the server, live: the list of sessions, and the envelopes of the sessions that are shown. */

import { signal } from "@preact/signals";
import type { Source } from "whyloop-ui/session";
import { token, type SessionSummary } from "./api";
import { Stream, webSocket, type Connection, type News, type Wanted } from "./stream";

/** The state of the connection, and when the next attempt is. */
export const connection = signal<{ state: Connection; retryAt: number | null }>({ state: "connecting", retryAt: null });

type OnList = (changed: SessionSummary[], deleted: string[]) => void;

const onLists = new Set<OnList>();
const sources = new Set<LiveSource>();
const base = new URL(".", document.baseURI).href;
let opened: Channel | null = null;

/** The channel of this tab, opened when something is first to be followed. */
function channel(): Channel {
  return (opened ??= globalThis.SharedWorker ? workerChannel() : ownChannel());
}

/** Call a function with each change of the list of sessions; return a function that ends that. */
export function onListChange(listener: OnList): () => void {
  onLists.add(listener);
  tellWanted();
  return () => {
    onLists.delete(listener);
    tellWanted();
  };
}

/** Connect again now. */
export function reconnect(): void {
  channel().retry();
}

/** An `EventSource` for `followSession` whose envelopes come through the shared stream. */
export class LiveSource implements Source {
  readyState = 0;
  onopen: ((event: unknown) => unknown) | null = null;
  onmessage: ((event: unknown) => unknown) | null = null;
  onerror: ((event: unknown) => unknown) | null = null;
  readonly session: string;
  readonly after: string | null;

  constructor(url: string) {
    const parsed = new URL(url, base);
    const parts = parsed.pathname.split("/");
    this.session = decodeURIComponent(parts[parts.length - 2] ?? "");
    this.after = parsed.searchParams.get("after");
    sources.add(this);
    tellWanted();
  }

  close(): void {
    this.readyState = 2;
    sources.delete(this);
    tellWanted();
  }
}

function tellWanted(): void {
  const sessions = Object.fromEntries([...sources].map(({ session, after }) => [session, after]));
  channel().want({ list: onLists.size > 0, sessions });
}

function receive(news: News): void {
  if (news.kind === "connection") {
    connection.value = { state: news.state, retryAt: news.retryAt };
    if (news.state !== "live") return;
    for (const source of sources) {
      source.readyState = 1;
      source.onopen?.({});
    }
  } else if (news.kind === "list") {
    for (const listener of onLists) listener(news.sessions, news.deleted);
  } else {
    const event = { data: JSON.stringify(news.envelope) };
    for (const source of sources) if (source.session === news.session) source.onmessage?.(event);
  }
}

interface Channel {
  want(wanted: Wanted): void;
  retry(): void;
}

function workerChannel(): Channel {
  const worker = new SharedWorker("assets/worker.js", { type: "module", name: "whyloop" });
  worker.port.onmessage = ({ data }: MessageEvent<News>) => receive(data);
  addEventListener("pagehide", () => worker.port.postMessage("leave"));
  return {
    want: (wanted) => worker.port.postMessage({ wanted, base, token: token() }),
    retry: () => worker.port.postMessage("retry"),
  };
}

function ownChannel(): Channel {
  const stream = new Stream(webSocket(base, token));
  return { want: (wanted) => stream.listen(stream, wanted, receive), retry: () => stream.retry() };
}
