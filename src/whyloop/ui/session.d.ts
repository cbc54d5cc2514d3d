/** The live view of one session: its history, what happens in it, and the history again at each start and end. */

import type { UiMessage } from "./index.js";

/** The part of an `EventSource` that is used. */
export interface Source {
  readonly readyState: number;
  onopen: ((event: any) => unknown) | null;
  onmessage: ((event: any) => unknown) | null;
  onerror: ((event: any) => unknown) | null;
  close(): void;
}

export interface FollowOptions {
  /** Sent when the history is asked for. An `EventSource` of a browser sends none; one of your own may. */
  headers?: Record<string, string>;
  /** True if cookies go to a server of another origin. */
  withCredentials?: boolean;
  /** What went wrong; it is tried again by itself, so there is nothing to do but to say so. */
  onError?: (error: Error) => void;
  /** The one of the platform if none is given. */
  fetch?: typeof globalThis.fetch;
  /** The browser's if none is given. Node has none, so there it has to be given. */
  EventSource?: new (
    url: string,
    options: { withCredentials: boolean; headers?: Record<string, string> },
  ) => Source;
  setTimeout?: (action: () => void, milliseconds: number) => unknown;
}

export interface FollowedSession {
  /** What there is to show now. */
  readonly messages: readonly UiMessage[];
  /**
   * Show at once what the user has sent, or an error of your own. Without a role it is the user's.
   * What is returned takes it back, for what could not be sent.
   */
  add(message: Partial<UiMessage>): () => void;
  /** Ask for the history again, for what no envelope tells. */
  refresh(): Promise<void>;
  /** Hear nothing more. */
  close(): void;
}

/**
 * Show the session at this address and keep it up to date; `onMessages` is called after each change.
 *
 * `{url}/messages` answers `{"messages": [...], "after": "..."}`, and `{url}/events?after=...` sends the
 * envelopes after that place as server-sent events, in order.
 *
 * Throws a TypeError where there is no `fetch` or no `EventSource` and none is given.
 */
export function followSession(
  url: string,
  onMessages: (messages: readonly UiMessage[]) => void,
  options?: FollowOptions,
): FollowedSession;
