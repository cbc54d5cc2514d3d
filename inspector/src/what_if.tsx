/** What if: the sliders of the limits, and where the run would have ended. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Amounts, WhatIf } from "./api";
import type { Evidence, LimitUse } from "./evidence";
import { count, counted, duration, money, shortCount } from "./format";
import type { Limits } from "./session_data";
import "./styles/what_if.css";

// The result is announced when the slider rests, not at each of its positions.
const REST = 500;

/** A value of a limit, without its unit. */
export function limitText(unit: LimitUse["unit"], value: number): string {
    if (unit === "usd") return money(value);
    if (unit === "seconds") return value >= 100 || Number.isInteger(value) ? count(value) : value.toFixed(1);
    return unit === "tokens" ? shortCount(value) : count(value);
}

/** A value of a limit as a sentence says it. */
function spoken(unit: LimitUse["unit"], value: number): string {
    if (unit === "usd") return money(value);
    return unit === "seconds" ? `${limitText(unit, value)} s` : counted(value, unit.replace(/s$/, ""));
}

/** The far right of a slider, which is no limit, and the width of its steps. */
function scaleOf({ unit, limit, used }: LimitUse): { most: number; by: number } {
    const wanted = Math.max(limit * 1.5, used * 1.6);
    if (unit === "steps") return { most: Math.max(6, Math.ceil(wanted)), by: 1 };
    const by = roundDown(wanted / 300);
    return { most: Math.ceil(wanted / by) * by, by };
}

/** The next smaller of 1, 2, 5, 10, 20, 50, …: so that the slider stops at numbers that people would choose. */
function roundDown(value: number): number {
    const power = 10 ** Math.floor(Math.log10(value));
    const first = value / power;
    return (first >= 5 ? 5 : first >= 2 ? 2 : 1) * power;
}

/** The headroom of a limit; its thumb asks what if. */
export function LimitSlider({ evidence, limit }: { evidence: Evidence; limit: LimitUse }) {
    const { option, unit } = limit;
    const { most, by } = scaleOf(limit);
    const moved = option === null ? undefined : evidence.limits.value[option];
    const shown = moved === undefined ? limit.limit : (moved ?? most);
    const end = evidence.end.value?.at ?? evidence.steps.value.length - 1;
    const room = end >= 0 ? evidence.headroom(end, limit) : null;
    const used = room?.used ?? (end < 0 ? 0 : limit.used);
    const isUsedUp = room !== null && room.used >= room.limit;
    const move = (event: Event): void => {
        // The scale begins at 0, as the bar does, but a limit of 0 is none.
        const value = Math.max(by, Number((event.currentTarget as HTMLInputElement).value));
        const others = { ...evidence.limits.peek() };
        delete others[option!];
        const isRecorded = Math.abs(value - limit.limit) < by / 2;
        const limits: Limits = isRecorded ? others : { ...others, [option!]: value >= most ? null : value };
        void evidence.ask(limits);
    };
    const share = (value: number): string => `${Math.min(100, (value / most) * 100)}%`;
    return (
        <div class={`limit ${moved === undefined ? "" : "moved"}`}>
            <span class="track">
                <i class="allowed" style={{ width: share(shown + limit.granted) }} />
                <i class={`used ${isUsedUp ? "up" : ""}`} style={{ width: share(used) }} />
                <i class="recorded" style={{ left: share(limit.limit) }} />
                {option !== null && (
                    <input
                        type="range"
                        min={0}
                        max={most}
                        step={by}
                        value={shown}
                        aria-label={`What if ${limit.rule}`}
                        aria-valuetext={shown >= most ? "no limit" : spoken(unit, shown)}
                        onInput={move}
                    />
                )}
            </span>
            <output>
                {limitText(unit, used)}
                {moved === null ? (
                    ", no limit"
                ) : (
                    <>
                        {" "}
                        of <b>{limitText(unit, shown)}</b>
                    </>
                )}
                {limit.granted > 0 && ` + ${limitText(unit, limit.granted)}`}
                {unit === "seconds" && moved !== null && " s"}
            </output>
        </div>
    );
}

/** Where the run ended, or would have ended. */
export function WhatIfBar({ evidence }: { evidence: Evidence }) {
    const asked = evidence.data.whatIf.value;
    const sentence = asked
        ? answerText(asked.answer, (evidence.execution.value?.first_step ?? 1) - 1)
        : recordedText(evidence);
    const saved = asked && savedParts(asked.answer.saved);
    const announced = useSignal("");
    const announcement = asked ? `${sentence}${saved!.length ? ` Saved ${saved!.join(", ")}.` : ""}` : "";
    useEffect(() => {
        const timer = setTimeout(() => (announced.value = announcement), REST);
        return () => clearTimeout(timer);
    }, [announcement]);
    return (
        <div class={`what-if ${asked ? "on" : ""}`}>
            <span class="what-if-name">{asked ? `What if ${limitsText(evidence)}` : "Recorded"}</span>
            <span>{evidence.problem.value || <Emphasized text={sentence} evidence={evidence} />}</span>
            {asked?.answer.is_cut && asked.answer.was_completed && (
                <b class="t-f">The run completed: its answer would be missing.</b>
            )}
            {saved && saved.length > 0 && (
                <span class="saved">
                    Saved{" "}
                    {saved.map((part) => (
                        <b key={part}>{part}</b>
                    ))}
                </span>
            )}
            <span class="space" />
            {asked || Object.keys(evidence.limits.value).length > 0 ? (
                <button class="button small" onClick={() => void evidence.ask({})}>
                    Reset
                </button>
            ) : (
                evidence.limitUses.value.length > 0 && (
                    <span class="quiet note">
                        The limits are judged again on the recorded steps. No model is called.
                    </span>
                )
            )}
            <span class="hidden-text" role="status">
                {announced.value}
            </span>
        </div>
    );
}

/** The sentence with the step and the rule in bold; the rule's name is always shown as text. */
function Emphasized({ text, evidence }: { text: string; evidence: Evidence }) {
    const rule = evidence.end.value?.rule;
    const at = rule ? text.lastIndexOf(rule) : -1;
    if (!rule || at < 0) return <>{text}</>;
    return (
        <>
            {text.slice(0, at)}
            <b>{rule}</b>
            {text.slice(at + rule.length)}
        </>
    );
}

function recordedText(evidence: Evidence): string {
    const { has_more: isLoading, step_count: total } = evidence.data.trace.value!;
    if (isLoading) return `Loading, ${count(evidence.data.steps.value.length)} of ${counted(total, "step")}`;
    const end = evidence.recordedEnd.value;
    const steps = evidence.steps.value;
    if (end) {
        const step = steps[end.at]!;
        const verb = step.outcome!.stop_reason === null ? "Paused in" : "Ended at";
        return `${verb} step ${step.index}, decided by ${end.rule}`;
    }
    const last = steps.at(-1);
    if (!last) return "No step has been taken yet";
    return last.completed_at === null ? `Step ${last.index} is open` : `Continued after step ${last.index}`;
}

/** The answer counts the steps of its execution, and the page those of the session: `before` are the earlier ones. */
function answerText(answer: WhatIf, before: number): string {
    const assumed =
        answer.assumed_from === null
            ? ""
            : ` From step ${before + answer.assumed_from} on it assumes the same answers.`;
    if (answer.beyond) return `Would have continued past the recorded end. What follows is not recorded.${assumed}`;
    if (answer.stopped_at === null) return `Would not have ended yet.${assumed}`;
    const where = answer.stopped_at === 0 ? "before its first step" : `at step ${before + answer.stopped_at}`;
    return `Would have ended ${where}, decided by ${answer.resolved_by}.${assumed}`;
}

function limitsText(evidence: Evidence): string {
    const { limits } = evidence.data.whatIf.value!;
    const moved = evidence.limitUses.value.filter(({ option }) => option !== null && limits[option] !== undefined);
    return moved
        .map(
            ({ rule, option, unit }) =>
                `${rule} ${limits[option!] === null ? "none" : spokenValue(unit, limits[option!]!)}`,
        )
        .join(", ");
}

function spokenValue(unit: LimitUse["unit"], value: number): string {
    return unit === "seconds" ? `${limitText(unit, value)} s` : unit === "usd" ? money(value) : count(value);
}

/** What would have been saved; amounts that are zero or unknown are left out. */
function savedParts({ steps, tokens, cost, seconds }: Amounts): string[] {
    return [
        steps ? counted(steps, "step") : "",
        tokens ? counted(tokens, "token") : "",
        Number(cost) ? money(cost) : "",
        seconds ? duration(seconds) : "",
    ].filter(Boolean);
}
