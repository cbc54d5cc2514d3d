/** The verdict: why the session is where it is, and what would let it continue. */

import type { Evaluation, Info, Outcome, Step, Trace } from "./api";
import { Age } from "./clock";
import { Continue } from "./continue";
import type { Evidence } from "./evidence";
import { count, duration, money, statusWord, sumOf, tokenCount, toneOf, voteOf, voteWord, type Vote } from "./format";
import { Headline, lastDecided, limitsText } from "./headline";
import { Icon, STATUS_ICONS, VoteSign } from "./icons";

/** The name of an agent that was given none. */
const UNNAMED = "agent";

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
                            <Headline
                                trace={trace}
                                steps={latestSteps(evidence)}
                                outcome={outcome}
                                begun={evidence.begun.value}
                            />
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

/** The votes that resolved the session as it is: those of a pause or an end in an open step are there. */
function lastOutcome(evidence: Evidence): Outcome | null {
    const { open_step: open, has_more: isLoading } = evidence.data.trace.value!;
    if (open?.outcome) return open.outcome;
    if (isLoading) return null;
    return lastDecided(latestSteps(evidence));
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
    const name = session.agent === UNNAMED ? "" : session.agent;
    const parts = [[name, ...labels].filter(Boolean).join(" "), limitsText(evidence.data.trace.value!)];
    const about = parts.filter(Boolean).join(" · ");
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
    const used = isOne ? usage : sumOf(steps.map((each) => each.usage));
    return (
        <div class="facts">
            <span>
                <b>{count(steps.length)}</b> {steps.length === 1 ? "step" : "steps"}
            </span>
            <span>
                <b>{tokenCount(used)}</b> tokens
            </span>
            {used.cost != null && (
                <span>
                    <b>{money(used.cost)}</b>
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
