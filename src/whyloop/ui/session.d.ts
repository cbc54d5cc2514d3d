/** The live view of one session: its history, the envelopes after it, the history again at each start and end. */

import type { UiMessage, View } from "./index.js";

/** The part of an `EventSource` that is used. */
export interface Source {
  readonly readyState: number;
  onopen: ((event: any) => unknown) | null;
  onmessage: ((event: any) => unknown) | null;
  onerror: ((event: any) => unknown) | null;
  close(): void;
}

export interface FollowOptions {
  /** Sent with each request. An `EventSource` of a browser sends none; one of your own may. */
  headers?: Record<string, string>;
  /** True to send cookies to a server of another origin. */
  withCredentials?: boolean;
  /** Called with each error. The session is requested again without your help: show the error, or ignore it. */
  onError?: (error: Error) => void;
  /** The platform's by default. */
  fetch?: typeof globalThis.fetch;
  /** The browser's by default. Node has none, so there it has to be passed. */
  EventSource?: new (
    url: string,
    options: { withCredentials: boolean; headers?: Record<string, string> },
  ) => Source;
  setTimeout?: (action: () => void, milliseconds: number) => unknown;
}

export interface FollowedSession {
  /** The latest view. */
  readonly view: View;
  /**
   * Show at once a message that the user has sent, or an error of your own. Without a role it is the user's.
   * Return a function that removes it again, for a message that could not be sent.
   */
  add(message: Partial<UiMessage>): () => void;
  /** Request the history again. */
  refresh(): Promise<void>;
  /** Close the connection. `onChange` is not called any more. */
  close(): void;
}

/**
 * Follow the session at this address; `onChange` is called with each new view of it.
 *
 * `GET {url}/messages` returns `{"messages": [...], "after": "..."}`. `GET {url}/events?after=...` sends the
 * envelopes after that cursor, as server-sent events or, with `accept: application/json`, as
 * `{"events": [...], "next": "...", "has_more": false}`; a cursor is `{execution_id}:{seq}`.
 *
 * Throws a TypeError if the platform has no `fetch` or no `EventSource` and none is passed.
 */
export function followSession(
  url: string,
  onChange: (view: View) => void,
  options?: FollowOptions,
): FollowedSession;
