/** What a cell of the ledger says: what happened in a step, and why a rule voted as it did. */

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Call, Step } from "./api";
import { happeningOf, type Evidence, type Happening } from "./evidence";
import { count, counted, duration, money, voteWord, type Tone } from "./format";
import { CALL_WORDS, VoteSign } from "./icons";

const MOST_NUMBERS = 8;
const MOST_CALLS = 6;
const LONGEST_VALUE = 120;

const SIGNS: Record<Exclude<Happening, "calls">, { tone: Tone; shape: JSX.Element }> = {
    error: { tone: "f", shape: <path d="M6 1.5v5.5M6 10v.4" /> },
    failed: { tone: "f", shape: <path d="m2.5 2.5 7 7m0-7-7 7" /> },
    denied: {
        tone: "f",
        shape: (
            <>
                <circle cx="6" cy="6" r="4.6" />
                <path d="m2.8 2.8 6.4 6.4" />
            </>
        ),
    },
    person: {
        tone: "w",
        shape: (
            <>
                <rect x="1.3" y="1.3" width="9.4" height="9.4" rx="2" />
                <path d="M4.7 4v4m2.6-4v4" />
            </>
        ),
    },
    answer: { tone: "s", shape: <path d="m2 6.5 2.6 2.7L10 3.2" /> },
    open: { tone: "r", shape: <path d="M6 1.4A4.6 4.6 0 1 1 1.4 6" /> },
};

/** A small sign for what happened in a step: one line for each tool call, or what went wrong. */
export function HappeningSign({ step }: { step: Step }) {
    const happening = happeningOf(step);
    const lines = [[6], [4, 8], [3, 6, 9]][Math.min(3, step.tool_calls.length) - 1] ?? [];
    const { tone, shape } =
        happening === "calls"
            ? { tone: "a", shape: <path d={lines.map((y) => `M2 ${y}h8`).join("")} /> }
            : SIGNS[happening];
    return (
        <svg class={`icon t-${tone}`} width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">
            {shape}
        </svg>
    );
}

/** A short description of a step. */
export function happeningText(step: Step): string {
    const { tool_calls: calls } = step;
    const failed = calls.filter(({ status }) => status === "failed").length;
    const parts = [
        happeningOf(step) === "error" ? (step.failures[0]?.message ?? "an error") : "",
        calls.length ? counted(calls.length, "tool call") : "",
        failed ? `${failed} failed` : "",
        calls.some(({ status }) => status === "denied") ? "a person denied a call" : "",
        step.waited_seconds > 0 ? `waited ${duration(step.waited_seconds)} for a person` : "",
        step.backoff_seconds > 0 ? `after ${duration(step.backoff_seconds)} of backoff` : "",
    ].filter(Boolean);
    return parts.join(", ") || (step.completed_at === null ? "in progress" : "the model answered");
}

/** Where the tip is: at a cell of a rule, or at the head of a step. */
export interface TipPlace {
    at: number;
    rule: string | null;
    box: DOMRect;
}

/** The reason and the numbers of the cell under the pointer or with the focus. Its label has the same text. */
export function ColumnTip({ evidence, place }: { evidence: Evidence; place: Signal<TipPlace | null> }) {
    const tip = useRef<HTMLDivElement>(null);
    const shown = place.value;
    useLayoutEffect(() => {
        if (shown && tip.current) putBeside(tip.current, shown.box);
    }, [shown]);
    const step = shown && evidence.steps.value[shown.at];
    if (!step) return null;
    return (
        <div class="tip" ref={tip} aria-hidden="true">
            {shown.rule === null ? (
                <StepTip step={step} />
            ) : (
                <VoteTip evidence={evidence} at={shown.at} rule={shown.rule} step={step} />
            )}
        </div>
    );
}

/** Put a tip below a cell, or above it where there is no room. */
export function putBeside(tip: HTMLElement, box: DOMRect): void {
    const { offsetWidth: width, offsetHeight: height } = tip;
    const below = box.bottom + 8;
    const top = below + height > innerHeight - 8 ? box.top - height - 8 : below;
    const left = Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2));
    tip.style.top = `${Math.max(8, top)}px`;
    tip.style.left = `${left}px`;
}

function VoteTip({ evidence, at, rule, step }: { evidence: Evidence; at: number; rule: string; step: Step }) {
    const { vote, reason, numbers, isDeciding } = evidence.cell(at, rule);
    const isCut = at >= evidence.cutFrom.value;
    const entries = Object.entries(numbers).filter(([, value]) => value !== null && typeof value !== "object");
    return (
        <>
            <header>
                {vote && <VoteSign vote={vote} />}
                <b class="clip">{rule}</b>
                <span class="quiet">step {step.index}</span>
            </header>
            <p>
                {vote ? `${voteWord(vote)[0]!.toUpperCase()}${voteWord(vote).slice(1)}: ` : ""}
                {reason}
            </p>
            {entries.length > 0 && !evidence.answer.value && (
                <dl>
                    {entries.slice(0, MOST_NUMBERS).map(([name, value]) => (
                        <div key={name}>
                            <dt>{name.replaceAll("_", " ")}</dt>
                            <dd>{numberText(value)}</dd>
                        </div>
                    ))}
                </dl>
            )}
            {isCut ? (
                <p class="t-w">Not reached in this what-if</p>
            ) : (
                isDeciding && (
                    <p>
                        <b>This vote decided the step.</b>
                    </p>
                )
            )}
        </>
    );
}

function numberText(value: unknown): string {
    if (typeof value === "number") return value.toLocaleString("en-US", { maximumFractionDigits: 3 });
    const text = String(value);
    return text.length > LONGEST_VALUE ? `${text.slice(0, LONGEST_VALUE)}…` : text;
}

/** What a step took and did. */
export function StepTip({ step }: { step: Step }) {
    const { tool_calls: calls } = step;
    return (
        <>
            <header>
                <b>Step {step.index}</b>
                <span class="quiet">{duration(step.duration_ms / 1000)}</span>
            </header>
            <p>{happeningText(step)}</p>
            {step.usage.total > 0 && (
                <p class="quiet">
                    {count(step.usage.total)} tokens{step.usage.cost ? `, ${money(step.usage.cost)}` : ""}
                </p>
            )}
            {calls.length > 0 && (
                <ul>
                    {calls.slice(0, MOST_CALLS).map((call) => (
                        <CallLine key={call.id} call={call} />
                    ))}
                    {calls.length > MOST_CALLS && <li class="quiet">and {calls.length - MOST_CALLS} more</li>}
                </ul>
            )}
        </>
    );
}

function CallLine({ call }: { call: Call }) {
    return (
        <li>
            <code class="clip">{call.name}</code>
            <span class={call.status === "failed" || call.status === "denied" ? "t-f" : "quiet"}>
                {CALL_WORDS[call.status]}
            </span>
            {call.duration_ms > 0 && <span class="quiet">{duration(call.duration_ms / 1000)}</span>}
        </li>
    );
}
