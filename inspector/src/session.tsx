/** One session: the headline, what would let it continue, and the evidence. */

import { effect, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo } from "preact/hooks";
import type { Info } from "./api";
import { ChatView } from "./chat_page";
import { Conversation } from "./conversation";
import { Evidence } from "./evidence";
import { Ledger } from "./ledger";
import { connection } from "./live";
import { go, sessionLink } from "./routes";
import { SessionData } from "./session_data";
import { StepDetail } from "./step";
import { Timeline } from "./timeline";
import { Verdict } from "./verdict";
import "./styles/session.css";

const TABS = { why: "Why", conversation: "Conversation", timeline: "Timeline" };

type Tab = keyof typeof TABS;

export function SessionPage({ id, step, info }: { id: string; step: number | null; info: Info | null }) {
    const data = useMemo(() => new SessionData(id), [id]);
    const evidence = useMemo(() => new Evidence(data), [data]);
    const tab = useSignal<Tab>("why");
    useEffect(() => {
        data.open();
        // What was missed while the connection was lost is read when it is back.
        const stop = effect(() => {
            if (connection.value.state === "live" && data.error.peek()) void data.read();
        });
        return () => {
            stop();
            data.close();
        };
    }, [data]);
    useLayoutEffect(() => closeWithEscape(id, step), [id, step]);
    useEffect(() => {
        if (step !== null) evidence.showStep(step);
    }, [step, data.steps.value.length > 0]);
    const stage = useStages(data.trace.value !== null);
    const error = data.error.value;
    if (!data.mayInspect.value)
        return (
            <div class="chat-page">
                <ChatView data={data} info={info} />
            </div>
        );
    if (!data.trace.value)
        return error ? <Missing id={id} message={error.message} status={error.status} /> : <Loading />;
    return (
        <div class="session" data-tab={tab.value}>
            <Verdict evidence={evidence} info={info} />
            {error && (
                <p class="session-error" role="alert">
                    {error.message} What is shown may be out of date.
                </p>
            )}
            <Tabs tab={tab.value} onChoose={(chosen) => (tab.value = chosen)} />
            <div class="panes">
                <div class="pane pane-conversation" id="pane-conversation" inert={step !== null}>
                    <Conversation data={data} info={info} />
                </div>
                {step !== null && (
                    <div class="pane pane-step">
                        <StepDetail data={data} index={step} info={info} />
                    </div>
                )}
                <div class="evidence">
                    <div class="pane-why" id="pane-why">
                        {stage > 0 && <Ledger evidence={evidence} selected={step} />}
                    </div>
                    <div class="pane-timeline" id="pane-timeline">
                        {stage > 1 && <Timeline evidence={evidence} selected={step} />}
                    </div>
                </div>
            </div>
        </div>
    );
}

/** Count up to 2 once there is something to show: a page that draws all its parts at once holds up the browser. */
function useStages(hasBegun: boolean): number {
    const stage = useSignal(0);
    useEffect(() => {
        if (!hasBegun || stage.value === 2) return undefined;
        const timer = setTimeout(() => (stage.value += 1));
        return () => clearTimeout(timer);
    }, [hasBegun, stage.value]);
    return stage.value;
}

/** Below 1100 px one part is shown at a time. */
function Tabs({ tab, onChoose }: { tab: Tab; onChoose: (tab: Tab) => void }) {
    const names = Object.keys(TABS) as Tab[];
    const move = (event: KeyboardEvent): void => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        onChoose(names[(names.indexOf(tab) + by + names.length) % names.length]!);
        const list = event.currentTarget as HTMLElement;
        requestAnimationFrame(() => list.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
    };
    return (
        <div class="session-tabs segments" role="tablist" aria-label="Parts of the session" onKeyDown={move}>
            {names.map((name) => (
                <button
                    key={name}
                    role="tab"
                    aria-selected={name === tab}
                    aria-controls={`pane-${name}`}
                    tabIndex={name === tab ? 0 : -1}
                    onClick={() => onChoose(name)}
                >
                    {TABS[name]}
                </button>
            ))}
        </div>
    );
}

function Loading() {
    return (
        <p class="page quiet" role="status">
            Loading the session
        </p>
    );
}

function Missing({ id, message, status }: { id: string; message: string; status: number }) {
    return (
        <div class="page missing" role="alert">
            <h1>{status === 404 ? `There is no session ${id}` : "The session cannot be shown"}</h1>
            <p class="quiet">{status === 404 ? "It was deleted, or it is in another store." : message}</p>
            <p>
                <a class="link" href="#/sessions">
                    All sessions
                </a>
            </p>
        </div>
    );
}

/** Return from a step to the conversation with Escape. */
function closeWithEscape(id: string, step: number | null): (() => void) | undefined {
    if (step === null) return undefined;
    const close = (event: KeyboardEvent): void => {
        if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]"))
            go(sessionLink(id));
    };
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
}
