/** The table of the ledger: only the columns near what is visible are drawn. */

import { useSignal } from "@preact/signals";
import { createContext, type ComponentChildren } from "preact";
import { useContext, useLayoutEffect, useRef } from "preact/hooks";
import type { Step } from "./api";
import type { Evidence } from "./evidence";
import { voteWord } from "./format";
import { reveal, type Layout } from "./ledger";
import { HappeningSign, happeningText } from "./ledger_cells";
import { HeadroomChart, HeadroomLegend, TokenBars, tokenText } from "./ledger_charts";
import { go, sessionLink } from "./routes";
import { LimitSlider } from "./what_if";

/** Whether there is room for the reasons and the sliders beside the votes. */
const HasGutter = createContext(true);

// With so few steps numbers say more than bars.
const FEW_STEPS = 3;

export function Table({
    evidence,
    layout,
    scroller,
}: {
    evidence: Evidence;
    layout: Layout;
    scroller: { current: HTMLDivElement | null };
}) {
    const steps = evidence.steps.value;
    const rules = evidence.rules.value;
    const focus = useSignal<{ at: number; row: number } | null>(null);
    const table = useRef<HTMLTableElement>(null);
    const isMoving = useRef(false);
    const end = evidence.end.value ?? { at: steps.length - 1, rule: null };
    const focused = focus.value ?? { at: Math.max(0, end.at), row: Math.max(0, rules.indexOf(end.rule ?? "")) };
    const { columnWidth, ruleWidth, gutterWidth, first, last } = layout;
    const shown = steps.slice(first, last);
    const after = (steps.length - last) * columnWidth;
    const total = ruleWidth + steps.length * columnWidth + gutterWidth;
    const move = (event: KeyboardEvent): void => {
        // Keys may be quicker than pictures.
        const from = focus.peek() ?? focused;
        const to = moved(event.key, from, steps.length, rules.length);
        if (!to || !(event.target as Element).closest("[data-rule]")) return;
        event.preventDefault();
        if (event.key === "Enter" || event.key === " ")
            return go(sessionLink(evidence.data.id, steps[from.at]!.index));
        reveal(scroller.current!, layout, to.at);
        isMoving.current = true;
        focus.value = to;
    };
    // A column that was not drawn is there once the table has been scrolled to it.
    useLayoutEffect(() => {
        const cell = isMoving.current && table.current?.querySelector<HTMLElement>("[data-rule][tabindex='0']");
        if (!cell) return;
        isMoving.current = false;
        cell.focus({ preventScroll: true });
    });
    const open = (event: Event): void => {
        const cell = (event.target as Element).closest<HTMLElement>("[data-column]");
        if (cell) go(sessionLink(evidence.data.id, steps[Number(cell.dataset.column)]!.index));
    };
    const columns = { before: first * columnWidth, after, span: shown.length + 2 };
    return (
        <table
            ref={table}
            class="ledger-table"
            role="grid"
            aria-label="The vote of every rule after every step"
            aria-colcount={steps.length + 1}
            aria-rowcount={rules.length + 3}
            style={{ width: `${total}px` }}
            onKeyDown={move}
            onClick={open}
        >
            <colgroup>
                <col style={{ width: `${ruleWidth}px` }} />
                <col style={{ width: `${columns.before}px` }} />
                {shown.map((_, at) => (
                    <col key={at} style={{ width: `${columnWidth}px` }} />
                ))}
                <col style={{ width: `${columns.after}px` }} />
                {gutterWidth > 0 && <col style={{ width: `${gutterWidth}px` }} />}
            </colgroup>
            <HasGutter.Provider value={gutterWidth > 0}>
                <Head evidence={evidence} shown={shown} first={first} />
                <tbody>
                    {rules.map((rule, row) => (
                        <RuleRow
                            key={rule}
                            evidence={evidence}
                            rule={rule}
                            shown={shown}
                            first={first}
                            focusedAt={focused.row === row ? focused.at : -1}
                        />
                    ))}
                    <OutcomeRow evidence={evidence} shown={shown} first={first} />
                    {steps.length > FEW_STEPS && <ChartRows evidence={evidence} layout={layout} span={columns.span} />}
                    {steps.length > 0 && steps.length <= FEW_STEPS && (
                        <TokensRow evidence={evidence} shown={shown} first={first} />
                    )}
                </tbody>
            </HasGutter.Provider>
        </table>
    );
}

type Place = { at: number; row: number };

/** The place to which a key moves the focus; null for other keys. */
function moved(key: string, { at, row }: Place, columns: number, rows: number): Place | null {
    const to: Record<string, Place> = {
        ArrowLeft: { at: at - 1, row },
        ArrowRight: { at: at + 1, row },
        ArrowUp: { at, row: row - 1 },
        ArrowDown: { at, row: row + 1 },
        PageUp: { at: at - 10, row },
        PageDown: { at: at + 10, row },
        Home: { at: 0, row },
        End: { at: columns - 1, row },
        Enter: { at, row },
        " ": { at, row },
    };
    const wanted = to[key];
    const within = (value: number, most: number): number => Math.max(0, Math.min(most - 1, value));
    return wanted ? { at: within(wanted.at, columns), row: within(wanted.row, rows) } : null;
}

interface Part {
    evidence: Evidence;
    shown: readonly Step[];
    first: number;
}

function Spacer() {
    return <td class="spacer" role="presentation" />;
}

function Gutter({ children }: { children?: ComponentChildren }) {
    return useContext(HasGutter) ? <td class="gutter">{children}</td> : null;
}

function Head({ evidence, shown, first }: Part) {
    const cut = evidence.cutFrom.value;
    const steps = evidence.steps.value;
    const last = steps[evidence.end.value?.at ?? lastDecided(steps)];
    const canAsk = evidence.limitUses.value.some(({ option }) => option !== null);
    return (
        <thead>
            <tr class="numbers">
                <th scope="col" class="rule quiet">
                    Step
                </th>
                <Spacer />
                {shown.map((step, at) => (
                    <th
                        key={at}
                        scope="col"
                        data-column={first + at}
                        class={first + at + 1 === cut ? "edge" : ""}
                        aria-colindex={first + at + 2}
                    >
                        {step.index}
                    </th>
                ))}
                <Spacer />
                <Gutter>
                    {last && (
                        <>
                            After step {last.index}.{canAsk && " Drag a limit to ask what if"}
                        </>
                    )}
                </Gutter>
            </tr>
            <tr class="happenings">
                <th scope="row" class="rule quiet">
                    What happened
                </th>
                <Spacer />
                {shown.map((step, at) => (
                    <td
                        key={at}
                        data-column={first + at}
                        class={first + at >= cut ? "cut" : ""}
                        aria-label={`Step ${step.index}: ${happeningText(step)}`}
                    >
                        <HappeningSign step={step} />
                    </td>
                ))}
                <Spacer />
                <Gutter />
            </tr>
        </thead>
    );
}

function RuleRow({ evidence, rule, shown, first, focusedAt }: Part & { rule: string; focusedAt: number }) {
    const end = evidence.end.value;
    const cut = evidence.cutFrom.value;
    return (
        <tr class={end?.rule === rule ? "decided" : ""}>
            <th scope="row" class="rule" title={rule}>
                {rule}
            </th>
            <Spacer />
            {/* Cells are drawn again for other steps: making hundreds of new ones would hold up a scroll. */}
            {shown.map((step, offset) => {
                const at = first + offset;
                const { vote, reason, isDeciding } = evidence.cell(at, rule);
                const mark = !isDeciding || at >= cut ? "" : end?.at === at ? "deciding" : "decided-step";
                const label = `Step ${step.index}, ${rule}: ${vote ? voteWord(vote) : "not asked"}. ${reason}`;
                return (
                    <td
                        key={offset}
                        data-column={at}
                        data-rule={rule}
                        tabIndex={at === focusedAt ? 0 : -1}
                        aria-colindex={at + 2}
                        class={`${vote ? `v${vote.toLowerCase()}` : ""} ${mark} ${at >= cut ? "cut" : ""} ${at + 1 === cut ? "edge" : ""}`}
                        aria-label={`${label}${mark ? ". Decided" : ""}${at >= cut ? ". Not reached in this what-if" : ""}`}
                    >
                        <i class={vote ? "mark" : "not-asked"}>{vote}</i>
                    </td>
                );
            })}
            <Spacer />
            <Gutter>
                <RuleReason evidence={evidence} rule={rule} />
            </Gutter>
        </tr>
    );
}

/** The reason of a rule at the end, or the slider of its limit. */
function RuleReason({ evidence, rule }: { evidence: Evidence; rule: string }) {
    const steps = evidence.steps.value;
    const limit = evidence.limitUses.value.find((each) => each.rule === rule);
    const end = evidence.end.value?.at ?? lastDecided(steps);
    const reason = end >= 0 ? evidence.cell(end, rule).reason : "Not asked yet";
    return limit ? (
        <LimitSlider evidence={evidence} limit={limit} />
    ) : (
        <span class="reason" title={reason}>
            {reason}
        </span>
    );
}

function lastDecided(steps: readonly Step[]): number {
    return steps.findLastIndex(({ outcome }) => outcome !== null);
}

function OutcomeRow({ evidence, shown, first }: Part) {
    const steps = evidence.steps.value;
    const end = evidence.end.value;
    const answer = evidence.answer.value;
    const cut = evidence.cutFrom.value;
    const outcomeAt = (at: number): "continue" | "stop" | "done" | "pause" | "open" | "" => {
        if (at >= cut) return "";
        const { outcome } = steps[at]!;
        if (end?.at === at) {
            const vote = evidence.cell(at, end.rule ?? "").vote;
            const pauses = answer ? answer.status === "paused" : outcome !== null && outcome.stop_reason === null;
            return pauses ? "pause" : vote === "S" ? "done" : "stop";
        }
        if (answer || !outcome) return outcome ? "continue" : "open";
        return outcome.should_continue || at < steps.length - 1 ? "continue" : "stop";
    };
    const words = { continue: "continue", stop: "stop", done: "stop", pause: "pause", open: "open", "": "not reached" };
    const last = end ? outcomeAt(end.at) : steps.length ? outcomeAt(steps.length - 1) : "open";
    return (
        <tr class="outcomes">
            <th scope="row" class="rule">
                Outcome
            </th>
            <Spacer />
            {shown.map((step, offset) => {
                const at = first + offset;
                const outcome = outcomeAt(at);
                return (
                    <td
                        key={offset}
                        data-column={at}
                        class={at + 1 === cut ? "edge" : ""}
                        aria-label={`Step ${step.index}: ${words[outcome]}`}
                    >
                        {outcome && <i class={`outcome ${outcome}`} />}
                    </td>
                );
            })}
            <Spacer />
            <Gutter>
                {end ? (
                    <>
                        <b>{last === "pause" ? "Pause" : "Stop"}</b> by {end.rule}
                    </>
                ) : (
                    <b>
                        {answer?.beyond ? "Continue, not recorded" : last === "open" ? "Not decided yet" : "Continue"}
                    </b>
                )}
            </Gutter>
        </tr>
    );
}

/** With few steps numbers say more than bars. */
function TokensRow({ evidence, shown, first }: Part) {
    const cut = evidence.cutFrom.value;
    return (
        <tr class="token-numbers">
            <th scope="row" class="rule">
                Tokens
            </th>
            <Spacer />
            {shown.map((step, at) => (
                <td key={step.index} data-column={first + at} class={first + at >= cut ? "cut" : ""}>
                    {tokenText(step)}
                </td>
            ))}
            <Spacer />
            <Gutter />
        </tr>
    );
}

function ChartRows({ evidence, layout, span }: { evidence: Evidence; layout: Layout; span: number }) {
    return (
        <>
            <tr class="chart">
                <th scope="row" class="rule">
                    Tokens per step
                </th>
                <td colSpan={span}>
                    <TokenBars evidence={evidence} layout={layout} />
                </td>
                <Gutter>
                    <TokenSummary evidence={evidence} />
                </Gutter>
            </tr>
            {evidence.limitUses.value.length > 0 && (
                <tr class="chart">
                    <th scope="row" class="rule">
                        Headroom left
                        <span class="axis" aria-hidden="true">
                            <i>100 %</i>
                            <i>0 %</i>
                        </span>
                    </th>
                    <td colSpan={span}>
                        <HeadroomChart evidence={evidence} layout={layout} />
                    </td>
                    <Gutter>
                        <HeadroomLegend evidence={evidence} />
                    </Gutter>
                </tr>
            )}
        </>
    );
}

function TokenSummary({ evidence }: { evidence: Evidence }) {
    const used = evidence.steps.value.map(({ usage }) => usage.total).filter(Boolean);
    if (!used.length) return <>No answer reported its tokens</>;
    const sum = used.reduce((total, each) => total + each, 0);
    return (
        <>
            {Math.max(...used).toLocaleString("en-US")} at most, {Math.round(sum / used.length).toLocaleString("en-US")}{" "}
            on average
        </>
    );
}
