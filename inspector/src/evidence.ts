/** The evidence of one execution: its steps, its rules and their votes, as recorded or under other limits. */

import { computed, signal } from "@preact/signals";
import type { Evaluation, Limit, Step } from "./api";
import { voteOf, type Vote } from "./format";
import { saved } from "./saved";
import { stepsOf, type Limits, type SessionData } from "./session_data";

type Option = Limit["option"];

/** The rules whose limit can be moved, and what each one counts. */
const KNOWN_LIMITS: Record<string, { option: Option; unit: Limit["unit"]; noun: string }> = {
    StepsLimit: { option: "max_steps", unit: "steps", noun: "steps" },
    TokenUsageLimit: { option: "max_tokens", unit: "tokens", noun: "tokens" },
    ExecutionTimeLimit: { option: "timeout", unit: "seconds", noun: "time" },
    CumulativeExecutionTimeLimit: { option: "cumulative_timeout", unit: "seconds", noun: "working time" },
    CostLimit: { option: "max_cost", unit: "usd", noun: "money" },
};

/** A limit of the execution. */
export interface LimitUse {
    /** The key of its row. */
    rule: string;
    /** The option that moves it; null if it cannot be moved. */
    option: Option | null;
    unit: Limit["unit"];
    noun: string;
    /** Without what was granted. */
    limit: number;
    granted: number;
    /** At the recorded end. */
    used: number;
}

/** The vote of one rule after one step. */
export interface Cell {
    /** Null if the rule was not asked. */
    vote: Vote | null;
    reason: string;
    numbers: Record<string, unknown>;
    isDeciding: boolean;
}

/** Where the run ended, or would have ended. */
export interface End {
    /** The place of the step among those of the execution, from 0; -1 if it ended before its first. */
    at: number;
    rule: string | null;
}

const evaluations = new WeakMap<Step, Map<string, Evaluation>>();

/** The evaluations of a step by the key of their row: the name of the rule, numbered if it occurs twice. */
function evaluationsOf(step: Step): Map<string, Evaluation> {
    let found = evaluations.get(step);
    if (!found) {
        found = new Map();
        for (const each of step.outcome?.evaluations ?? []) {
            let key = each.criterion;
            for (let again = 2; found.has(key); again++) key = `${each.criterion} (${again})`;
            found.set(key, each);
        }
        evaluations.set(step, found);
    }
    return found;
}

/** Two numbers of a limit at one step. */
export interface Headroom {
    used: number;
    limit: number;
}

export class Evidence {
    /** The execution that the reader chose; null is the latest. */
    readonly chosen = signal<string | null>(null);
    /** The limits as the sliders are. */
    readonly limits = signal<Limits>({});
    /** Why a question could not be answered. */
    readonly problem = signal("");

    readonly executions = computed(() => this.data.trace.value?.executions ?? []);

    readonly execution = computed(() => {
        const executions = this.executions.value;
        return executions.find(({ id }) => id === this.chosen.value) ?? executions.at(-1) ?? null;
    });

    readonly isLatest = computed(() => this.execution.value === this.executions.value.at(-1));

    /** The steps of the execution; the last one may be open. */
    readonly steps = computed<readonly Step[]>(() => {
        const execution = this.execution.value;
        if (!execution) return [];
        const closed = stepsOf(execution, this.executions.value, this.data.steps.value);
        const open = this.isLatest.value ? (this.data.trace.value?.open_step ?? this.begun.value) : null;
        return open && open.index > (closed.at(-1)?.index ?? 0) ? [...closed, open] : closed;
    });

    /** A step whose model call runs; nothing of it is recorded before the answer. */
    readonly begun = computed<Step | null>(() => {
        const session = this.data.state.value?.session;
        const execution = this.executions.value.at(-1);
        const last = this.data.steps.value.at(-1);
        if (!execution || !session?.is_running || this.data.trace.value?.status !== "in_progress") return null;
        const before = last && last.index >= execution.first_step ? last : null;
        // After a model call that failed it may be the provider that is waited for.
        if (before && (isModelFailure(before) || before.outcome?.should_continue === false)) return null;
        return {
            index: (last?.index ?? 0) + 1,
            number: (before?.number ?? 0) + 1,
            execution_id: execution.id,
            type: "final",
            started_at: before?.completed_at ?? execution.started_at,
            completed_at: null,
            answered_at: null,
            duration_ms: 0,
            backoff_seconds: 0,
            waited_seconds: 0,
            finish_reason: null,
            usage: { input: 0, output: 0, total: 0 },
            tool_calls: [],
            failures: [],
            interrupted: null,
            wrap_up: null,
            outcome: null,
        };
    });

    /** The keys of the rows, in the order in which the rules are asked. */
    readonly rules = computed(() => {
        const keys = new Set<string>();
        const steps = this.steps.value;
        // The latest step has the rules of now; an earlier one may have had others.
        for (let at = steps.length - 1; at >= 0; at--)
            for (const key of evaluationsOf(steps[at]!).keys()) keys.add(key);
        if (keys.size === 0) for (const rule of this.data.trace.value?.rules ?? []) keys.add(rule);
        return [...keys];
    });

    readonly limitUses = computed<LimitUse[]>(() => {
        const options = new Set<Option | null>();
        return this.rules.value.flatMap((rule) => {
            const known = KNOWN_LIMITS[rule.replace(/ \(\d+\)$/, "")];
            const numbers = this.steps.value.flatMap((step) => headroomOf(evaluationsOf(step).get(rule)) ?? []);
            const last = numbers.at(-1);
            if (!known || !last) return [];
            const limit = numbers.reduce((least, each) => Math.min(least, each.limit), Infinity);
            // A saved file cannot ask what if, and a what-if moves one limit of each kind: the first.
            const option = saved || options.has(known.option) ? null : known.option;
            options.add(option);
            return [{ rule, ...known, option, limit, granted: last.limit - limit, used: last.used }];
        });
    });

    /** The answer to the what-if that is shown. */
    readonly answer = computed(() => this.data.whatIf.value?.answer ?? null);

    /** Where the execution would end under the limits of the sliders; null if that is not known. */
    readonly end = computed<End | null>(() => {
        const answer = this.answer.value;
        if (!answer) return this.recordedEnd.value;
        return answer.beyond || answer.stopped_at === null
            ? null
            : { at: answer.stopped_at - 1, rule: answer.resolved_by };
    });

    readonly recordedEnd = computed<End | null>(() => {
        const steps = this.steps.value;
        const last = steps.findLastIndex(({ wrap_up, outcome }) => outcome !== null && wrap_up === null);
        const outcome = steps[last]?.outcome;
        if (!outcome || outcome.should_continue) return null;
        // A run that continues after its last decision has not ended.
        if (steps.slice(last + 1).some(({ wrap_up }) => wrap_up === null)) return null;
        return { at: last, rule: outcome.resolved_by };
    });

    /** The place of the first step that would not have been taken; Infinity if all would. */
    readonly cutFrom = computed(() => (this.answer.value && this.end.value ? this.end.value.at + 1 : Infinity));

    constructor(readonly data: SessionData) {}

    /** Show an execution; a what-if is about the one that is shown. */
    choose(id: string): void {
        this.chosen.value = id;
        void this.ask({});
    }

    /** Show the execution of a step, by its index. */
    showStep(index: number): void {
        const id = this.executions.peek().findLast(({ first_step }) => first_step <= index)?.id;
        if (id && id !== this.execution.peek()?.id) this.choose(id);
    }

    /** Ask how the execution would have ended under these limits. */
    async ask(limits: Limits): Promise<void> {
        this.limits.value = limits;
        const execution = this.isLatest.peek() ? undefined : this.execution.peek()?.id;
        try {
            await this.data.ask(limits, execution);
            this.problem.value = "";
        } catch (cause) {
            this.problem.value = (cause as Error).message;
        }
    }

    /** The place of a step by its index, among those that are shown; -1 if it is not. */
    placeOf(index: number | null): number {
        const steps = this.steps.value;
        // Steps are numbered without gaps.
        const at = index === null || !steps.length ? -1 : index - steps[0]!.index;
        return at < steps.length ? at : -1;
    }

    /** The vote of a rule after a step. */
    cell(at: number, rule: string): Cell {
        const step = this.steps.value[at]!;
        const recorded = evaluationsOf(step).get(rule);
        const letter = at < this.cutFrom.value ? this.answer.value?.votes[rule]?.[at] : undefined;
        const isJudged = letter !== undefined && letter !== "-";
        const vote = isJudged ? (letter as Vote) : recorded ? voteOf(recorded.decision) : null;
        const notAsked = step.outcome ? "Not asked" : "Not asked yet";
        const reason = (isJudged && this.answer.value?.reasons[rule]?.[at]) || (recorded?.reason ?? notAsked);
        return { vote, reason, numbers: recorded?.context ?? {}, isDeciding: this.decidingRule(at) === rule };
    }

    /** The rule that decided after a step. */
    decidingRule(at: number): string | null {
        const answer = this.answer.value;
        const end = this.end.value;
        if (!answer || at >= this.cutFrom.value) return this.steps.value[at]!.outcome?.resolved_by ?? null;
        if (end?.at === at) return end.rule;
        for (const vote of "FRSA") {
            const rule = this.rules.value.find((each) => answer.votes[each]?.[at] === vote);
            if (rule) return rule;
        }
        return this.steps.value[at]!.outcome?.resolved_by ?? null;
    }

    /** How much of a limit was used after a step, under the limits of the sliders; null if it is not known. */
    headroom(at: number, limit: LimitUse): Headroom | null {
        const recorded = headroomOf(evaluationsOf(this.steps.value[at]!).get(limit.rule));
        if (!recorded) return null;
        const moved = limit.option === null ? undefined : this.limits.value[limit.option];
        if (moved === undefined) return recorded;
        return { used: recorded.used, limit: moved === null ? Infinity : recorded.limit - limit.limit + moved };
    }
}

function headroomOf(evaluation: Evaluation | undefined): Headroom | null {
    const { used, limit } = evaluation?.context ?? {};
    return typeof used === "number" && typeof limit === "number" ? { used, limit } : null;
}

export type Happening = "error" | "failed" | "denied" | "person" | "calls" | "answer" | "open";

/** What happened in a step that a reader looks for first. */
export function happeningOf(step: Step): Happening {
    const statuses = step.tool_calls.map(({ status }) => status);
    if (isModelFailure(step)) return "error";
    if (statuses.includes("failed")) return "failed";
    if (statuses.includes("denied")) return "denied";
    if (step.waited_seconds > 0 || statuses.includes("waiting")) return "person";
    if (statuses.length > 0) return "calls";
    return step.completed_at === null ? "open" : "answer";
}

/** Whether the model gave no answer. */
export function isModelFailure({ type, tool_calls: calls }: Step): boolean {
    return type === "error" && calls.length === 0;
}
