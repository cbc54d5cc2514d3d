/** The verdict: why the session is where it is, and what would let it continue. */

import type { Evaluation, Execution, Info, Limit, Outcome, Step, Trace } from "./api";
import { Age } from "./clock";
import { Continue } from "./continue";
import type { Evidence } from "./evidence";
import { count, counted, duration, money, statusWord, toneOf, voteOf, voteWord, type Vote } from "./format";
import { Icon, STATUS_ICONS, VoteSign } from "./icons";
import { limitText } from "./what_if";

const LONGEST_REASON = 160;

export function Verdict({ evidence, info }: { evidence: Evidence; info: Info | null }) {
    const trace = evidence.data.trace.value!;
    const outcome = lastOutcome(evidence);
    return (
        <section class="verdict" aria-label="Why">
            <div>
                <Crumbs evidence={evidence} />
                <div class="headline">
                    <Sign trace={trace} outcome={outcome} />
                    <div>
                        <h1>
                            <Headline evidence={evidence} trace={trace} outcome={outcome} />
                        </h1>
                        {outcome && <Chain evidence={evidence} outcome={outcome} />}
                        <Facts evidence={evidence} />
                    </div>
                </div>
            </div>
            <Continue evidence={evidence} info={info} />
            <span class="hidden-text" role="status">
                {statusWord(trace.status)}
            </span>
        </section>
    );
}

/** The latest steps, whichever execution the ledger shows: the verdict is about the session as it is. */
function latestSteps(evidence: Evidence): readonly Step[] {
    return evidence.data.latest.value;
}

/** The votes that resolved the session as it is: those of a pause are in the step that is open. */
function lastOutcome(evidence: Evidence): Outcome | null {
    const { status, open_step: open, has_more: isLoading } = evidence.data.trace.value!;
    if (status === "paused" && open?.outcome) return open.outcome;
    if (isLoading) return null;
    return (
        latestSteps(evidence).findLast(({ outcome, wrap_up }) => outcome !== null && wrap_up === null)?.outcome ?? null
    );
}

function decidingOf(outcome: Outcome | null): Evaluation | undefined {
    return outcome?.evaluations.find(
        ({ criterion, decision }) => criterion === outcome.resolved_by && decision === outcome.decision,
    );
}

function Crumbs({ evidence }: { evidence: Evidence }) {
    const session = evidence.data.state.value!.session;
    const labels = Object.entries(session.metadata).map(
        ([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`,
    );
    const about = [session.agent, ...labels].filter(Boolean).join(" ");
    return (
        <div class="crumbs">
            <a class="link" href="#/sessions">
                Sessions
            </a>
            <span aria-hidden="true">/</span>
            <b class="clip">{session.agent_id}</b>
            {session.is_running && <span class="live-tag">LIVE</span>}
            <span class="clip about" title={about}>
                {about}
                {about && " · "}
                <Age time={session.updated_at} /> ago
            </span>
        </div>
    );
}

function Sign({ trace, outcome }: { trace: Trace; outcome: Outcome | null }) {
    const { status } = trace;
    const decided = decidingOf(outcome);
    const isRunning = status === "in_progress" || status === "pending";
    if (isRunning || !decided || (status === "paused" && !outcome?.pauses && outcome?.should_continue)) {
        return (
            <span class={`headline-sign t-${toneOf(status)}`}>
                <Icon name={STATUS_ICONS[status]} class={status === "in_progress" ? "turning" : ""} />
            </span>
        );
    }
    return <VoteSign vote={voteOf(decided.decision)} size={32} />;
}

/** One sentence: status, used of limit, the rule that decided, and what was pending. */
function Headline({ evidence, trace, outcome }: { evidence: Evidence; trace: Trace; outcome: Outcome | null }) {
    const { status, open_step: open } = trace;
    const steps = latestSteps(evidence);
    const execution = trace.executions?.at(-1);
    if (status === "in_progress") return <>{runningText(open ?? evidence.begun.value, steps.at(-1))}</>;
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

const ORDER: Vote[] = ["F", "R", "S", "A"];

/** The count of votes that resolved it: one forbid beats everything, and so on. */
function Chain({ evidence, outcome }: { evidence: Evidence; outcome: Outcome }) {
    const { status, open_step: open } = evidence.data.trace.value!;
    const step = latestSteps(evidence).find((each) => each.outcome === outcome);
    const votes = ORDER.map((vote) => ({
        vote,
        by: outcome.evaluations.filter(({ decision }) => voteOf(decision) === vote),
    }));
    const isPause = !outcome.should_continue && outcome.stop_reason === null;
    const result = outcome.should_continue ? "continue" : isPause ? "pause" : "stop";
    const tone = outcome.should_continue ? "r" : isPause ? "w" : status === "completed" ? "s" : "f";
    return (
        <div class="chain">
            <span class="quiet">
                {step ? `After step ${step.index}` : `In the middle of step ${open?.index ?? 1}`}:
            </span>
            {votes
                .filter(({ by }) => by.length)
                .map(({ vote, by }, at) => (
                    <>
                        {at > 0 && <span class="quiet beats">beats</span>}
                        <span
                            key={vote}
                            class={`pill v${vote.toLowerCase()} ${vote === voteOf(outcome.decision) ? "winning" : ""}`}
                        >
                            <VoteSign vote={vote} label="" />
                            {by.length} {voteWord(vote)}
                            {vote !== "A" && by.length === 1 ? `, ${by[0]!.criterion}` : ""}
                        </span>
                    </>
                ))}
            <span class="result">
                <span class="quiet">=</span> <b class={`t-${tone}`}>{result}</b>
            </span>
        </div>
    );
}

/** What the latest execution took. */
function Facts({ evidence }: { evidence: Evidence }) {
    const { times, executions, usage } = evidence.data.trace.value!;
    const steps = latestSteps(evidence);
    const isOne = (executions?.length ?? 1) <= 1;
    const tokens = isOne ? usage.total : steps.reduce((sum, each) => sum + each.usage.total, 0);
    const isPriced = steps.every((each) => each.usage.cost != null || each.usage.total === 0);
    const cost = isOne
        ? usage.cost
        : isPriced
          ? steps.reduce((sum, each) => sum + Number(each.usage.cost ?? 0), 0)
          : null;
    return (
        <div class="facts">
            <span>
                <b>{count(steps.length)}</b> {steps.length === 1 ? "step" : "steps"}
            </span>
            <span>
                <b>{count(tokens)}</b> tokens
            </span>
            {cost != null && (
                <span>
                    <b>{money(cost)}</b>
                </span>
            )}
            <span>
                <b>{duration(times.active_seconds)}</b> working
            </span>
            {times.backoff_seconds > 0 && (
                <span>
                    <b>{duration(times.backoff_seconds)}</b> backoff
                </span>
            )}
            {times.waiting_seconds > 0 && (
                <span>
                    <b>{duration(times.waiting_seconds)}</b> waiting for a person, not counted
                </span>
            )}
            {!isOne && (
                <span>
                    query <b>{executions.length}</b> of this session
                </span>
            )}
        </div>
    );
}
