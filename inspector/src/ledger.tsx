/** The ledger: the vote of every rule after every step, with tokens and headroom in the same columns. */

import { useComputed, useSignal, useSignalEffect, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Evidence } from "./evidence";
import { voteWord } from "./format";
import { VoteSign } from "./icons";
import { ColumnTip, type TipPlace } from "./ledger_cells";
import { Table } from "./ledger_table";
import { Minimap } from "./minimap";
import { LimitSlider, WhatIfBar } from "./what_if";
import { isNarrow, isPhone } from "./widths";
import "./styles/ledger.css";

const RULE_WIDTH = 172;
const WIDE_RULE_WIDTH = 204;
const PHONE_RULE_WIDTH = 142;
const LEAST_GUTTER = 264;
// Columns beyond the visible ones, and the number by which the window moves: so that few scrolls draw anything.
const MARGIN = 8;
const SOME_STEPS = 15;

/** The columns of the ledger, as wide as the card allows. */
interface Layout {
    ruleWidth: number;
    columnWidth: number;
    gutterWidth: number;
    isLong: boolean;
    /** The columns that are drawn: from the first to before the last. */
    first: number;
    last: number;
}

export function Ledger({ evidence, selected }: { evidence: Evidence; selected: number | null }) {
    const { data } = evidence;
    const scroller = useRef<HTMLDivElement>(null);
    const width = useSignal(960);
    const scrolled = useSignal(0);
    const tip = useSignal<TipPlace | null>(null);
    const steps = evidence.steps.value;
    const layout = layoutOf(steps.length, width.value, scrolled.value);
    useWidth(scroller, width);
    useAskAgain(evidence);
    useStartAtEnd(evidence, scroller, layout, selected);
    const look = (event: Event): void => showTip(event, evidence, tip);
    const leave = (): void => {
        tip.value = null;
        data.hot.value = null;
    };
    const uses = evidence.limitUses.value;
    return (
        <section class="card ledger" aria-label="Ledger">
            <header>
                <h2>Ledger</h2>
                <span class="quiet small-text clip">
                    {isPhone.value
                        ? "every rule, every step"
                        : "every rule votes after every step; the outlined vote decided"}
                </span>
                <span class="space" />
                <ExecutionChooser evidence={evidence} />
                <Legend />
            </header>
            <WhatIfBar evidence={evidence} />
            {layout.isLong && <Minimap evidence={evidence} scroller={scroller} layout={layout} scrolled={scrolled} />}
            <div
                class="ledger-scroll"
                ref={scroller}
                onPointerOver={look}
                onPointerLeave={leave}
                onFocusIn={look}
                onFocusOut={leave}
                onScroll={(event) => {
                    scrolled.value = Math.floor(event.currentTarget.scrollLeft / layout.columnWidth / MARGIN) * MARGIN;
                    tip.value = null;
                }}
            >
                <Bands evidence={evidence} layout={layout} selected={selected} />
                {steps.length > 0 && <Table evidence={evidence} layout={layout} scroller={scroller} />}
            </div>
            {layout.gutterWidth === 0 && uses.length > 0 && <Limits evidence={evidence} />}
            <ColumnTip evidence={evidence} place={tip} />
        </section>
    );
}

function layoutOf(count: number, width: number, scrolled: number): Layout {
    const ruleWidth = isPhone.value ? PHONE_RULE_WIDTH : count > SOME_STEPS ? RULE_WIDTH : WIDE_RULE_WIDTH;
    const most = Math.floor(Math.min(520, width - ruleWidth - LEAST_GUTTER) / Math.max(1, count));
    const columnWidth = isPhone.value ? 30 : Math.max(count > 999 ? 34 : 26, Math.min(56, most));
    // Beside the votes of a short run is room for the reasons, also on a narrow page.
    const rest = width - ruleWidth - count * columnWidth;
    const hasGutter = !isNarrow.value || rest >= LEAST_GUTTER;
    const room = Math.max(columnWidth, width - ruleWidth - (hasGutter ? LEAST_GUTTER : 0));
    const isLong = count * columnWidth > room;
    const gutterWidth = !hasGutter ? 0 : isLong ? LEAST_GUTTER : rest;
    if (!isLong) return { ruleWidth, columnWidth, gutterWidth, isLong, first: 0, last: count };
    const first = Math.max(0, scrolled - MARGIN);
    const last = Math.min(count, scrolled + Math.ceil(room / columnWidth) + 2 * MARGIN);
    return { ruleWidth, columnWidth, gutterWidth, isLong, first, last };
}

function useWidth(scroller: { current: HTMLDivElement | null }, width: Signal<number>): void {
    useLayoutEffect(() => {
        const measure = (): void => {
            if (scroller.current?.clientWidth) width.value = scroller.current.clientWidth;
        };
        const observer = new ResizeObserver(measure);
        observer.observe(scroller.current!);
        measure();
        return () => observer.disconnect();
    }, []);
}

/** While a run continues, its what-if is asked again after each step. */
function useAskAgain(evidence: Evidence): void {
    const taken = useComputed(() => evidence.data.steps.value.length);
    useSignalEffect(() => {
        void taken.value;
        const limits = evidence.limits.peek();
        if (Object.keys(limits).length) void evidence.ask(limits);
    });
}

/** Start at the end, and stay there while the run grows; go where a step was opened or a what-if ends. */
function useStartAtEnd(
    evidence: Evidence,
    scroller: { current: HTMLDivElement | null },
    layout: Layout,
    selected: number | null,
): void {
    const steps = evidence.steps.value;
    const wasAtEnd = useRef(true);
    const execution = evidence.execution.value?.id;
    useEffect(() => {
        const element = scroller.current!;
        const notice = (): void =>
            void (wasAtEnd.current = element.scrollLeft + element.clientWidth >= element.scrollWidth - 2);
        element.addEventListener("scroll", notice, { passive: true });
        return () => element.removeEventListener("scroll", notice);
    }, []);
    useLayoutEffect(() => {
        if (wasAtEnd.current) scroller.current!.scrollLeft = scroller.current!.scrollWidth;
    }, [steps.length, execution, layout.isLong, layout.gutterWidth]);
    useLayoutEffect(() => {
        const at = evidence.placeOf(selected);
        if (at >= 0) reveal(scroller.current!, layout, at);
    }, [selected, layout.isLong]);
    const end = evidence.answer.value && evidence.end.value?.at;
    useLayoutEffect(() => {
        if (typeof end === "number" && layout.isLong) reveal(scroller.current!, layout, Math.max(0, end));
    }, [end]);
}

/** Scroll sideways until a column is visible. */
export function reveal(scroller: HTMLElement, layout: Layout, at: number): void {
    const left = at * layout.columnWidth;
    const room = scroller.clientWidth - layout.ruleWidth - layout.gutterWidth;
    if (left < scroller.scrollLeft) scroller.scrollLeft = left;
    else if (left + layout.columnWidth > scroller.scrollLeft + room)
        scroller.scrollLeft = left + layout.columnWidth - room;
}

function showTip(event: Event, evidence: Evidence, tip: Signal<TipPlace | null>): void {
    const cell = (event.target as Element).closest<HTMLElement>("[data-column]");
    if (!cell) {
        tip.value = null;
        return;
    }
    const at = Number(cell.dataset.column);
    evidence.data.hot.value = evidence.steps.peek()[at]?.index ?? null;
    tip.value = { at, rule: cell.dataset.rule ?? null, box: cell.getBoundingClientRect() };
}

function Legend() {
    return (
        <span class="ledger-legend">
            {(["F", "R", "S", "A"] as const).map((vote) => (
                <span key={vote}>
                    <VoteSign vote={vote} />
                    <span aria-hidden="true">{voteWord(vote)}</span>
                </span>
            ))}
        </span>
    );
}

function ExecutionChooser({ evidence }: { evidence: Evidence }) {
    const executions = evidence.executions.value;
    if (executions.length < 2) return null;
    return (
        <label class="execution-chooser">
            <span class="hidden-text">Execution</span>
            <select
                value={evidence.execution.value!.id}
                onChange={(event) => evidence.choose(event.currentTarget.value)}
            >
                {executions
                    .map(({ id, query }, at) => (
                        <option
                            key={id}
                            value={id}
                        >{`${at + 1} of ${executions.length}: ${query || "without a query"}`}</option>
                    ))
                    .reverse()}
            </select>
        </label>
    );
}

/** The bands behind the columns: the step under the pointer, the open one, and what would not have happened. */
function Bands({ evidence, layout, selected }: { evidence: Evidence; layout: Layout; selected: number | null }) {
    const steps = evidence.steps.value;
    const left = (at: number): number => layout.ruleWidth + at * layout.columnWidth;
    const band = (index: number | null, name: string) => {
        const at = evidence.placeOf(index);
        return (
            at >= 0 && (
                <i class={`ledger-band ${name}`} style={{ left: `${left(at)}px`, width: `${layout.columnWidth}px` }} />
            )
        );
    };
    const cut = evidence.cutFrom.value;
    return (
        <div class="ledger-bands" aria-hidden="true">
            {band(selected, "selected")}
            {band(evidence.data.hot.value, "hot")}
            {cut <= steps.length && (
                <i
                    class="ledger-cut"
                    style={{ left: `${left(cut)}px`, width: `${(steps.length - cut) * layout.columnWidth}px` }}
                />
            )}
        </div>
    );
}

/** Below 1000 px the sliders are under the ledger. */
function Limits({ evidence }: { evidence: Evidence }) {
    return (
        <div class="ledger-limits">
            <h3>Move a limit to ask what if</h3>
            {evidence.limitUses.value.map((limit) => (
                <div key={limit.rule}>
                    <span>{limit.rule}</span>
                    <LimitSlider evidence={evidence} limit={limit} />
                </div>
            ))}
        </div>
    );
}

export type { Layout };
