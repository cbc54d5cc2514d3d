/** Where everything of a run is on its timeline, in seconds; pure, so that zooming only draws. */

import type { Call, Step } from "./api";
import { isModelFailure } from "./evidence";

export type Clock = "active" | "wall";
export type Kind = "model" | "tool" | "failed" | "denied" | "running" | "backoff" | "person";

/** Something that took time. Its place is `from` seconds, and after `folds` breaks. */
export interface Segment {
    kind: Kind;
    /** The place of its step among those of the execution. */
    step: number;
    /** 0 is the model's, tools begin at 1. */
    lane: number;
    from: number;
    to: number;
    folds: number;
    /** True for waiting that is drawn as a break, and not to scale. */
    isFold: boolean;
    label: string;
    seconds: number;
}

/** From where to where a step is. */
export interface Span {
    from: number;
    to: number;
    foldsBefore: number;
    foldsAfter: number;
}

export interface Scale {
    segments: Segment[];
    spans: Span[];
    /** All seconds that are drawn to scale. */
    seconds: number;
    /** The seconds before each break. */
    folds: number[];
    toolLanes: number;
}

export const MOST_LANES = 6;
// A shorter time between two steps is the work of the loop itself.
const LEAST_GAP = 1;

interface Cursor {
    at: number;
    folds: number[];
    segments: Segment[];
    isActive: boolean;
}

/** Lay out the steps of an execution. `now` is the end of what is still running. */
export function scaleOf(steps: readonly Step[], clock: Clock, now: number): Scale {
    const cursor: Cursor = { at: 0, folds: [], segments: [], isActive: clock === "active" };
    const spans: Span[] = [];
    let toolLanes = 1;
    let previousEnd: number | null = null;
    steps.forEach((step, place) => {
        const start = Date.parse(step.started_at);
        const end = Math.max(start, step.completed_at === null ? endOfOpen(step, now) : Date.parse(step.completed_at));
        if (previousEnd !== null) layGap(cursor, step, place, (start - previousEnd) / 1000);
        const span = { from: cursor.at, foldsBefore: cursor.folds.length };
        toolLanes = Math.max(toolLanes, layStep(cursor, step, place, start, end));
        spans.push({ ...span, to: cursor.at, foldsAfter: cursor.folds.length });
        previousEnd = end;
    });
    return { segments: cursor.segments, spans, seconds: cursor.at, folds: cursor.folds, toolLanes };
}

/** An open step lasts until now, unless it waits for a person and nothing runs. */
function endOfOpen(step: Step, now: number): number {
    const isRunning = step.tool_calls.length === 0 || step.tool_calls.some(({ status }) => status === "started");
    if (isRunning) return now;
    const wait = step.tool_calls.some(({ status }) => status === "waiting") ? now : 0;
    return Math.max(Date.parse(step.answered_at ?? step.started_at), wait, ...step.tool_calls.map(endOfCall));
}

function endOfCall({ started_at, duration_ms }: Call): number {
    return started_at === null ? 0 : Date.parse(started_at) + (duration_ms ?? 0);
}

/** Between two steps: waiting for the provider, or a run that was paused and resumed. */
function layGap(cursor: Cursor, step: Step, place: number, gap: number): void {
    const idle = gap - step.backoff_seconds;
    if (idle > LEAST_GAP) layWaiting(cursor, place, idle, "not running");
    const { backoff_seconds: seconds } = step;
    if (seconds <= 0) return;
    const { at, folds } = cursor;
    cursor.segments.push({
        kind: "backoff",
        step: place,
        lane: 0,
        from: at,
        to: at + seconds,
        folds: folds.length,
        isFold: false,
        label: "backoff",
        seconds,
    });
    cursor.at += seconds;
}

/** Waiting is a break on the active clock, and to scale on the wall clock. */
function layWaiting(cursor: Cursor, step: number, seconds: number, label: string): void {
    const { at, isActive } = cursor;
    const to = isActive ? at : at + seconds;
    cursor.segments.push({
        kind: "person",
        step,
        lane: 1,
        from: at,
        to,
        folds: cursor.folds.length,
        isFold: isActive,
        label,
        seconds,
    });
    if (isActive) cursor.folds.push(at);
    cursor.at = to;
}

/** Lay out the model's answer and the calls of a step; return how many lanes its calls need. */
function layStep(cursor: Cursor, step: Step, place: number, start: number, end: number): number {
    const answered = step.answered_at === null ? (step.tool_calls.length ? start : end) : Date.parse(step.answered_at);
    const wait = waitOf(step, start, answered, end);
    const isOpen = step.completed_at === null && step.answered_at === null && !step.tool_calls.length;
    const origin = cursor.at;
    let waited = 0;
    let folded = 0;
    const position = (time: number): number =>
        origin + (time - start) / 1000 - (cursor.isActive && wait && time >= wait.to ? waited : 0);
    const add = (kind: Kind, lane: number, from: number, to: number, label: string): void => {
        const isAfter = wait !== null && from >= wait.to;
        cursor.segments.push({
            kind,
            step: place,
            lane,
            from: position(from),
            to: position(to),
            isFold: false,
            label,
            seconds: (to - from) / 1000,
            folds: cursor.folds.length - (isAfter ? 0 : folded),
        });
    };
    if (wait) {
        waited = (wait.to - wait.from) / 1000;
        cursor.at = position(wait.from);
        layWaiting(cursor, place, waited, "waiting for a person");
        folded = cursor.isActive ? 1 : 0;
    }
    add(isOpen ? "running" : isModelFailure(step) ? "failed" : "model", 0, start, answered, "model");
    const lanes = layCalls(step, end, add, wait !== null);
    cursor.at = position(end);
    return lanes;
}

const KINDS: Partial<Record<Call["status"], Kind>> = {
    failed: "failed",
    denied: "denied",
    started: "running",
    not_completed: "denied",
};

function layCalls(
    step: Step,
    end: number,
    add: (kind: Kind, lane: number, from: number, to: number, label: string) => void,
    isWaiting: boolean,
): number {
    const ends: number[] = [];
    for (const call of step.tool_calls) {
        if (call.started_at === null) continue;
        const from = Date.parse(call.started_at);
        const to = call.status === "started" ? end : from + (call.duration_ms ?? 0);
        let lane = ends.findIndex((each) => each <= from);
        if (lane === -1) lane = Math.min(MOST_LANES - 1, ends.length);
        ends[lane] = Math.max(to, ends[lane] ?? 0);
        add(KINDS[call.status] ?? "tool", lane + 1, from, to, call.name);
    }
    return Math.max(ends.length, isWaiting ? 1 : 0);
}

/** When a step waited for a person: in the longest time in which nothing was at work. */
function waitOf(step: Step, start: number, answered: number, end: number): { from: number; to: number } | null {
    if (step.waited_seconds <= 0 && !step.tool_calls.some(({ status }) => status === "waiting")) return null;
    const work = [[start, answered] as const];
    for (const call of step.tool_calls)
        if (call.started_at !== null) work.push([Date.parse(call.started_at), endOfCall(call)]);
    work.sort(([a], [b]) => a - b);
    let longest = { from: answered, to: answered };
    let busyUntil = start;
    for (const [from, to] of [...work, [end, end] as const]) {
        if (from - busyUntil > longest.to - longest.from) longest = { from: busyUntil, to: from };
        busyUntil = Math.max(busyUntil, to);
    }
    return longest.to > longest.from ? longest : null;
}

/** Distances between ticks that people read easily, in seconds. */
const TICKS = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600,
    7200, 14_400, 21_600, 43_200, 86_400,
];

/** The distance between ticks that are at least so many seconds apart. */
export function tickDistance(least: number): number {
    return TICKS.find((each) => each >= least) ?? Math.ceil(least / 86_400) * 86_400;
}
