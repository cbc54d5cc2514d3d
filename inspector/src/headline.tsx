/** The headline of a run: how it ended, by which rule, and what was pending. */

import type { Execution, Limit, Outcome, Step, Trace } from "./api";
import { count, counted, statusWord, toneOf } from "./format";
import { limitText } from "./what_if";

const LONGEST_REASON = 160;

interface HeadlineProps {
    trace: Trace;
    /** Those of the latest execution. */
    steps: readonly Step[];
    outcome: Outcome | null;
    /** A step whose model call runs. */
    begun?: Step | null;
}

/** One sentence: status, used of limit, the rule that decided, and what was pending. */
export function Headline({ trace, steps, outcome, begun = null }: HeadlineProps) {
    const { status, open_step: open } = trace;
    const execution = trace.executions?.at(-1);
    if (status === "in_progress") return <>{runningText(open ?? begun, steps.at(-1))}</>;
    if (status === "pending") return <>New, nothing has been decided yet</>;
    const rule = trace.resolved_by && (
        <>
            {" "}
            by <b class={`t-${toneOf(status)}`}>{trace.resolved_by}</b>
        </>
    );
    const where = open ? ` in step ${open.index}` : ` after ${amountText(trace, execution)}`;
    const pending = outcome && outcome.decision === "forbid" ? pendingText(steps.at(-1), outcome) : "";
    return (
        <>
            {statusWord(status)}
            {where}
            {rule}
            {limitOf(trace) ? pending : reasonText(trace)}
        </>
    );
}

/** The limit that ended the run, if one did. */
function limitOf({ resolved_by: rule, stop_reason: reason, limits }: Trace): Limit | undefined {
    return reason === null || reason === "completed"
        ? undefined
        : limits.find((each) => each.rule === rule && each.used >= each.limit);
}

function amountText(trace: Trace, execution: Execution | undefined): string {
    const limit = limitOf(trace);
    if (!limit) return counted(execution?.step_count ?? trace.step_count, "step");
    const unit = limit.unit === "usd" ? "" : limit.unit === "seconds" ? " s" : ` ${limit.unit}`;
    const [used, most] =
        limit.unit === "tokens"
            ? [count(limit.used), count(limit.limit + limit.granted)]
            : [limitText(limit.unit, limit.used), limitText(limit.unit, limit.limit + limit.granted)];
    return `${used} of ${most}${unit}`;
}

function pendingText(last: Step | undefined, outcome: Outcome): string {
    const pending = last?.tool_calls.length ?? 0;
    const isAwaited = outcome.evaluations.some(({ decision }) => decision === "request");
    return pending && isAwaited
        ? ` while ${counted(pending, "tool call")} ${pending === 1 ? "was" : "were"} pending`
        : "";
}

function reasonText({ reason, stop_reason: stop }: Trace): string {
    if (!reason) return "";
    if (stop === "completed") return ": the model answered";
    return `: ${reason.length > LONGEST_REASON ? `${reason.slice(0, LONGEST_REASON)}…` : reason}`;
}

function runningText(open: Step | null, last: Step | undefined): string {
    if (open) {
        const running = open.tool_calls.filter(({ status }) => status === "started").length;
        const doing = running
            ? `${counted(running, "tool call")} ${running === 1 ? "is" : "are"} running`
            : open.tool_calls.length
              ? ""
              : "the model answers";
        return `Running step ${open.index}${doing && `: ${doing}`}`;
    }
    if (last?.outcome && last.type === "error") return `Running: step ${last.index} failed and is tried again`;
    return last ? `Running, ${counted(last.number, "step")} taken` : "Running";
}

/** The outcome of the last step that was decided. */
export function lastDecided(steps: readonly Step[]): Outcome | null {
    return steps.findLast(({ outcome, wrap_up }) => outcome !== null && wrap_up === null)?.outcome ?? null;
}

/** The limits of a run as its agent was given them. */
export function limitsText(trace: Trace): string {
    return (trace.limits ?? []).map(({ option, limit }) => `${option}=${limit}`).join(", ");
}
