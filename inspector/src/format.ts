/** Numbers, times and names as people read them. */

import type { Decision, Status, Usage } from "./api";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 87429 → "87,429". */
export function count(value: number): string {
  return WHOLE.format(value);
}

/** 87429 → "87.4k", for places without room. */
export function shortCount(value: number): string {
  if (value < 10_000) return count(value);
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0).replace(/\.0$/, "")}k`;
  return `${(value / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
}

/** 1 step, 2 steps. */
export function counted(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

const GENERATED_ID = /^(?=.*[a-f])([0-9a-f]{12,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;

/** The first characters of a generated id, and any other id whole. */
export function shortId(id: string): string {
  return GENERATED_ID.test(id) ? id.slice(0, 8) : id;
}

/** What some answers used in all. */
export function sumOf(usages: Usage[]): Usage {
  const isPriced = usages.every(({ cost, total, reported }) => cost != null || (total === 0 && reported !== false));
  const sum = (value: (usage: Usage) => number): number => usages.reduce((all, each) => all + value(each), 0);
  return {
    input: sum(({ input }) => input),
    output: sum(({ output }) => output),
    total: sum(({ total }) => total),
    cost: isPriced ? String(sum(({ cost }) => Number(cost ?? 0))) : null,
    reported: usages.every(({ reported }) => reported !== false),
  };
}

/** "87,429", or "≥ 1,008" if an answer did not report its tokens. */
export function tokenCount({ total, reported }: Usage): string {
  return `${reported === false ? "≥ " : ""}${count(total)}`;
}

/** A decimal number of US dollars → "$0.28", "$0.0135"; "unknown" if it is not known. */
export function money(cost: string | number | null | undefined): string {
  if (cost === null || cost === undefined) return "unknown";
  const value = Number(cost);
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toPrecision(2)}`;
  return `$${value.toFixed(value < 0.1 ? 4 : 2)}`;
}

/** Seconds → "420 ms", "44.9 s", "5 min 48 s", "3 h 20 min", "2 days". */
export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return pair(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return counted(Math.floor(whole / 86_400), "day");
}

function pair(large: number, unit: string, small: number, smallUnit: string): string {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
}

/** How long ago → "3 s", "12 min", "3 h", "2 days". */
export function age(time: string, now = Date.now()): string {
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return counted(Math.floor(seconds / 86_400), "day");
}

/** "2026-11-16T13:05:01Z" → "16 Nov 2026, 13:05:01" in the zone of the reader. */
export function moment(time: string): string {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export type Vote = "F" | "R" | "S" | "A";

const VOTES: Record<Decision, Vote> = {
  forbid: "F",
  request: "R",
  stop: "S",
  allow: "A",
};
const VOTE_WORDS: Record<Vote, string> = { F: "forbid", R: "request", S: "stop", A: "allow" };

/** The letter of a decision. */
export function voteOf(decision: Decision): Vote {
  return VOTES[decision];
}

/** The word for a vote. */
export function voteWord(vote: Vote): string {
  return VOTE_WORDS[vote];
}

const STATUS_WORDS: Record<Status, string> = {
  pending: "New",
  in_progress: "Running",
  paused: "Paused",
  completed: "Completed",
  stopped: "Stopped",
  failed: "Failed",
};

/** The word for a status. */
export function statusWord(status: Status): string {
  return STATUS_WORDS[status];
}

export type Tone = "f" | "r" | "s" | "w" | "a";

/** The colour of a status. */
export function toneOf(status: Status): Tone {
  if (status === "completed") return "s";
  if (status === "paused") return "w";
  if (status === "in_progress") return "r";
  return status === "pending" ? "a" : "f";
}
