/** What would let a session continue, and the buttons that do it. */

import { canRun, fork, mayTake, resume, resumeText, stop, type Target } from "./actions";
import { authorization, may, sessionPath, token, type Info, type Limit, type NextAction } from "./api";
import { approve, deny, edit } from "./decisions";
import type { Evidence } from "./evidence";
import { counted } from "./format";
import { compareLink, go, sessionLink } from "./routes";

export function Continue({ evidence, info }: { evidence: Evidence; info: Info | null }) {
    const { data } = evidence;
    const state = data.state.value!;
    const trace = data.trace.value!;
    const runs = canRun(info);
    const target: Target = {
        id: data.id,
        canRun: runs,
        server: data.server,
        user: info?.user ?? null,
        done: () => void data.read(),
    };
    const question = state.pending_calls[0];
    const others = state.pending_calls.length - 1;
    const isRunning =
        state.session.is_running || (trace.status === "in_progress" && state.session.status !== trace.status);
    const next = trace.next_actions.find(({ kind }) => kind === "grant" || kind === "resume");
    const last = data.steps.value.at(-1);
    const isNew = trace.next_actions[0]?.kind === "ask";
    return (
        <div class="to-continue">
            <header>
                <h2>
                    {isRunning
                        ? "What happens next"
                        : trace.status === "completed"
                          ? "What can follow"
                          : "What would let it continue"}
                </h2>
                <a
                    class="link"
                    href={`${sessionPath(data.id)}/saved.html`}
                    download={`${data.id}.html`}
                    onClick={(event) => void save(event, data.id)}
                >
                    Save as HTML
                </a>
            </header>
            <p>
                <Explanation evidence={evidence} isRunning={isRunning} canRun={runs} />
                {!runs && " "}
                {!runs && (may(info, "send") ? "This server runs no agent." : "You may look here, and run nothing.")}
            </p>
            <div class="actions">
                {question && may(info, "decide") && (
                    <>
                        <button class="button primary" onClick={() => approve(target, question, others)}>
                            {others || !runs ? "Approve" : "Approve and resume"}
                        </button>
                        {question.arguments && (
                            <button class="button" onClick={() => edit(target, question, others)}>
                                Edit arguments
                            </button>
                        )}
                        <button class="button" onClick={() => deny(target, question, others)}>
                            Deny
                        </button>
                    </>
                )}
                {!question && isRunning && may(info, "send") && (
                    <button
                        class="button primary"
                        disabled={data.isStopping.value}
                        onClick={() => stop(target, () => (data.isStopping.value = true))}
                    >
                        {data.isStopping.value ? "Stopping" : "Stop"}
                    </button>
                )}
                {!question && !isRunning && next && mayTake(info, next) && (
                    <button class="button primary" onClick={() => resume(target, next)}>
                        {resumeText(next)}
                    </button>
                )}
                {(trace.status === "completed" || isNew) && runs && (
                    <button class="button primary" onClick={() => askNext(data.id)}>
                        {isNew ? "Ask a question" : "Ask the next question"}
                    </button>
                )}
                {last && may(info, "manage") && (
                    <button class="button" onClick={() => fork(target, last.index, last.index)}>
                        Fork from step {last.index}
                    </button>
                )}
                <a class="button" href={compareLink(data.id, "")}>
                    Compare
                </a>
            </div>
        </div>
    );
}

/** Show the conversation, and put the focus where a question is written. */
function askNext(id: string): void {
    go(sessionLink(id));
    const tab = document.querySelector<HTMLElement>('[role="tab"][aria-controls="pane-conversation"]');
    if (tab?.offsetParent) tab.click();
    setTimeout(() => document.querySelector<HTMLElement>(".conversation :is(textarea, input)")?.focus());
}

/** A link sends no token, so with one the file is requested and then saved. */
async function save(event: MouseEvent, id: string): Promise<void> {
    if (!token()) return;
    event.preventDefault();
    const answer = await fetch(`${sessionPath(id)}/saved.html`, { headers: authorization() });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${id}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function Explanation({ evidence, isRunning, canRun }: { evidence: Evidence; isRunning: boolean; canRun: boolean }) {
    const trace = evidence.data.trace.value!;
    const questions = evidence.data.state.value!.pending_calls;
    const waiting = questions.length;
    const grant = trace.next_actions.find(({ kind }) => kind === "grant");
    const about = questions[0]?.tool === null ? "the run itself" : counted(waiting, "tool call");
    if (waiting) return <>A decision about {about}. Waiting costs no working time.</>;
    if (isRunning) return <>It continues by itself.</>;
    if (trace.status === "completed")
        return canRun ? <>Nothing is pending. Ask the next question, or fork to try another way.</> : <>Nothing is pending.</>;
    if (trace.next_actions[0]?.kind === "ask") return <>A question begins the run.</>;
    if (trace.status === "in_progress") return <>Its process has ended. Resume continues with what is recorded.</>;
    const changes = trace.next_actions.filter(({ kind }) => kind === "change_policy" || kind === "change_rule");
    return (
        <>
            {changes.map((change) => (
                <Change key={change.text} change={change} />
            ))}
            {grant ? (
                <Grant evidence={evidence} grant={grant} />
            ) : (
                !changes.length && <>Nothing is in the way: resume continues where it ended.</>
            )}
        </>
    );
}

function Change({ change: { text, code } }: { change: NextAction }) {
    return (
        <>
            {text[0]!.toUpperCase()}
            {text.slice(1)}
            {code && (
                <>
                    : <code>{code}</code>
                </>
            )}
            .{" "}
        </>
    );
}

const NOUNS: Record<Limit["unit"], string> = { steps: "steps", tokens: "tokens", seconds: "time", usd: "money" };

/** What is missing, and what remains of the other limits. */
function Grant({ evidence, grant }: { evidence: Evidence; grant: NextAction }) {
    const missing = grant.text.replace(/^grant more /, "");
    const outcome = evidence.data.latest.value.findLast((step) => step.outcome !== null)?.outcome;
    const forbidding = outcome?.evaluations.filter(({ decision }) => decision === "forbid") ?? [];
    const remaining = evidence.data.trace.value!.limits.filter(({ used, limit, granted }) => used < limit + granted);
    const parts = remaining.map(
        ({ unit, used, limit, granted }) => `${Math.round((1 - used / (limit + granted)) * 100)} % of ${NOUNS[unit]}`,
    );
    return (
        <>
            More {missing}.{" "}
            {forbidding.length === 1 && (
                <>
                    <b>{forbidding[0]!.criterion}</b> is the only rule that forbids{parts.length ? "; " : "."}
                </>
            )}
            {parts.length > 0 && `${parts.join(" and ")} ${parts.length === 1 ? "remains" : "remain"}.`}
        </>
    );
}
