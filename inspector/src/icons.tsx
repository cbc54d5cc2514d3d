/** Votes, states and small pictures: each differs by shape and word, and not by colour alone. */

import type { JSX } from "preact";
import type { CallStatus, Status } from "./api";
import { statusWord, toneOf, voteWord, type Vote } from "./format";

const SHAPES: Record<Vote, JSX.Element> = {
  F: <path class="b" d="M5.6 1h6.8L17 5.6v6.8L12.4 17H5.6L1 12.4V5.6z" />,
  R: <path class="b" d="M1.5 1.5H11L17 9l-6 7.5H1.5z" />,
  S: <rect class="b" x="1.5" y="1.5" width="15" height="15" rx="1.5" />,
  A: <circle class="b" cx="9" cy="9" r="7.5" />,
};

/** The sign of a vote: octagon, tag, square or circle with its letter. Without a label it is decoration. */
export function VoteSign({ vote, label, size = 18 }: { vote: Vote; label?: string; size?: number }) {
  return (
    <svg
      class={`vote v${vote.toLowerCase()}`} width={size} height={size} viewBox="0 0 18 18"
      {...(label === "" ? { "aria-hidden": "true" } : { role: "img", "aria-label": label ?? voteWord(vote) })}
    >
      {SHAPES[vote]}
      <text x={vote === "R" ? 7.5 : 9} y="12.6">{vote}</text>
    </svg>
  );
}

const ICONS = {
  check: <><circle cx="8" cy="8" r="6.25" /><path d="m5.2 8.2 2 2 3.6-4.2" /></>,
  cross: <><path d="M8 1.5 14.5 8 8 14.5 1.5 8z" /><path d="m6.2 6.2 3.6 3.6m0-3.6L6.2 9.8" /></>,
  slash: <><circle cx="8" cy="8" r="6.25" /><path d="m3.7 3.7 8.6 8.6" /></>,
  ring: <path d="M8 1.75A6.25 6.25 0 1 1 1.75 8" />,
  pause: <><rect x="2" y="2" width="12" height="12" rx="2" /><path d="M6.4 5.6v4.8m3.2-4.8v4.8" /></>,
  dashed: <circle cx="8" cy="8" r="6.25" stroke-dasharray="2.2 2.4" />,
  minus: <><circle cx="8" cy="8" r="6.25" /><path d="M5 8h6" /></>,
  dot: <circle cx="8" cy="8" r="2" />,
  left: <path d="m10 3-5 5 5 5" />,
  right: <path d="m6 3 5 5-5 5" />,
  close: <path d="m3.5 3.5 9 9m0-9-9 9" />,
  search: <><circle cx="7" cy="7" r="4.75" /><path d="m10.5 10.5 3.5 3.5" /></>,
  theme: <><circle cx="8" cy="8" r="6.25" /><path d="M8 1.75v12.5a6.25 6.25 0 0 0 0-12.5z" fill="currentColor" /></>,
  logo: <><path d="M13.6 10.4A6.25 6.25 0 1 1 14 6" /><circle cx="8" cy="8" r="1.6" fill="currentColor" /></>,
} as const;

export type IconName = keyof typeof ICONS;

/** A small picture; it is decoration, so there is always a word beside it. */
export function Icon({ name, class: more = "" }: { name: IconName; class?: string }) {
  return (
    <svg class={`icon ${more}`} width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
      {ICONS[name]}
    </svg>
  );
}

export const STATUS_ICONS: Record<Status, IconName> = {
  pending: "dot",
  in_progress: "ring",
  paused: "pause",
  completed: "check",
  stopped: "minus",
  failed: "cross",
};

/** The status of a session: picture and word. */
export function StatusSign({ status }: { status: Status }) {
  return (
    <span class={`status t-${toneOf(status)}`}>
      <Icon name={STATUS_ICONS[status]} class={status === "in_progress" ? "turning" : ""} />
      {statusWord(status)}
    </span>
  );
}

export const CALL_ICONS: Record<CallStatus, IconName> = {
  succeeded: "check",
  failed: "cross",
  denied: "slash",
  started: "ring",
  waiting: "pause",
  not_completed: "dashed",
  not_started: "dashed",
};

export const CALL_WORDS: Record<CallStatus, string> = {
  succeeded: "Succeeded",
  failed: "Failed",
  denied: "Denied",
  started: "Running",
  waiting: "Waiting",
  not_completed: "Not completed",
  not_started: "Not started",
};
