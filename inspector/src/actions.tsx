/** What people do to a session: each asks for a confirmation that says what will happen. */

import { computed, signal, type Signal } from "@preact/signals";
import { may, own, post, sessionPath, type Info, type NextAction, type Server, type SessionState } from "./api";
import { confirm } from "./dialogs";
import { counted, duration, money } from "./format";
import { go, sessionLink } from "./routes";

/** The session that an action is about. */
export interface Target {
    id: string;
    /** False if the reader cannot run it: then decisions are recorded, and another process continues. */
    canRun: boolean;
    server?: Server;
    /** The name of the reader; absent if the server does not know it. */
    user?: string | null;
    /** Called after the action, also if it failed: another client may have been faster. */
    done?: () => void;
}

/** Return whether the reader may run sessions, and the server can. */
export function canRun(info: Info | null): boolean {
    return may(info, "send") && info?.can_run !== false;
}

/** Return whether the reader may take an action that continues a run. */
export function mayTake(info: Info | null, action: NextAction): boolean {
    return canRun(info) && (action.kind !== "grant" || may(info, "manage"));
}

/** Send an action. */
export async function send<T>(target: Target, path: string, body: unknown): Promise<T> {
    try {
        return await post<T>(`${sessionPath(target.id)}/${path}`, body, target.server ?? own);
    } finally {
        target.done?.();
    }
}

/** The amounts of a grant: "10 steps", "10,000 tokens and 5 min". */
export function grantText(grant: NonNullable<NextAction["grant"]>): string {
    const parts = [
        grant.steps ? counted(grant.steps, "step") : "",
        grant.tokens ? counted(grant.tokens, "token") : "",
        grant.seconds ? duration(grant.seconds) : "",
        Number(grant.usd) ? money(grant.usd) : "",
    ].filter(Boolean);
    return parts.join(" and ");
}

/** The label of the button that resumes. */
export function resumeText(action: NextAction): string {
    const grant = action.grant && grantText(action.grant);
    return grant ? `Grant ${grant} and resume` : "Resume";
}

/** Continue a run that was paused, stopped or cut off; the reader may change the amounts of a grant. */
export function resume(target: Target, action: NextAction): void {
    const grant = signal(action.grant ?? {});
    const text = computed(() => grantText(grant.value));
    const isGranting = Boolean(action.grant && grantText(action.grant));
    confirm({
        title: resumeText(action),
        effects: [
            ...(isGranting
                ? [
                      computed(
                          () => `The run gets ${text.value || "nothing"} on top of its limits, and that is recorded.`,
                      ),
                  ]
                : []),
            "The run continues where it ended: the model is called, and tools may run.",
            "It ends again when a rule says so, or when you stop it.",
        ],
        button: computed(() => (text.value ? `Grant ${text.value} and resume` : "Resume")),
        children: isGranting ? <GrantFields grant={grant} /> : undefined,
        run: () => send(target, "resume", text.value ? { grant: grant.value } : {}),
    });
}

type Grant = NonNullable<NextAction["grant"]>;

const GRANT_LABELS: Record<keyof Grant, string> = {
    steps: "Steps",
    tokens: "Tokens",
    seconds: "Seconds",
    usd: "US dollars",
};

/** One field for each amount that is missing. */
function GrantFields({ grant }: { grant: Signal<Grant> }) {
    const wanted = (Object.keys(GRANT_LABELS) as (keyof Grant)[]).filter((name) => grant.value[name] !== undefined);
    return (
        <>
            {wanted.map((name) => (
                <label key={name} class="field">
                    {GRANT_LABELS[name]}
                    <input
                        type="number"
                        min="0"
                        max="10000000000"
                        step={name === "usd" ? "any" : 1}
                        required
                        defaultValue={String(grant.peek()[name])}
                        onInput={(event) =>
                            (grant.value = { ...grant.peek(), [name]: amountOf(name, event.currentTarget.value) })
                        }
                    />
                </label>
            ))}
        </>
    );
}

/** Money is sent as text, which is exact. */
function amountOf(name: keyof Grant, text: string): number | string {
    return name === "usd" ? text || "0" : Number(text) || 0;
}

/** End a run in progress. */
export function stop(target: Target, stopping?: () => void): void {
    confirm({
        title: "Stop the run",
        effects: [
            "The model call in progress is interrupted, and running tools get a moment to end.",
            "What was done so far is kept, and the run can be resumed.",
        ],
        button: "Stop",
        run: async () => {
            const { stopped } = await send<{ stopped: boolean }>(target, "stop", {
                reason: "Stopped in the inspector",
            });
            if (stopped) stopping?.();
        },
    });
}

/** Create a session with the history up to a step, and go there; with `last` the reader may choose the step. */
export function fork(target: Target, step: number, last?: number): void {
    const chosen = signal(step);
    const field = last !== undefined && (
        <label class="field">
            After step
            <input
                type="number"
                min="1"
                max={last}
                step="1"
                required
                defaultValue={String(step)}
                onInput={(event) => (chosen.value = Number(event.currentTarget.value))}
            />
        </label>
    );
    confirm({
        title: "Fork the session",
        effects: [
            computed(() => `A new session is created with everything up to step ${chosen.value}.`),
            "This session does not change.",
            "The new one waits for you: nothing runs before you resume it or ask a question.",
        ],
        button: computed(() => `Fork from step ${chosen.value}`),
        children: field,
        run: async () => {
            const { session } = await send<SessionState>(target, "fork", { step: chosen.value });
            go(sessionLink(session.agent_id));
        },
    });
}
