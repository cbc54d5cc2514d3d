/** The timeline: model time, tool calls, backoff and waiting, to scale. */

import { useComputed, useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { timeNow } from "./clock";
import type { Evidence } from "./evidence";
import { duration } from "./format";
import { happeningText, putBeside, StepTip } from "./ledger_cells";
import { go, sessionLink } from "./routes";
import { Bands, Plot, plotHeight } from "./timeline_plot";
import { scaleOf, type Clock, type Kind, type Scale } from "./timeline_scale";
import "./styles/timeline.css";

const LABELS = 64;
// The width of a break for waiting on the active clock.
export const FOLD = 26;
const STEP_AT_CLOSEST = 400;

/** What is in view, in pixels. */
export interface View {
    scale: Scale;
    /** Pixels of a second. */
    ratio: number;
    left: number;
    width: number;
}

/** The place of a second on the whole line, in pixels. */
export function placeOf({ ratio }: Pick<View, "ratio">, seconds: number, folds: number): number {
    return seconds * ratio + folds * FOLD;
}

export function Timeline({ evidence, selected }: { evidence: Evidence; selected: number | null }) {
    const clock = useSignal<Clock>("active");
    const zoom = useSignal(1);
    const width = useSignal(800);
    const left = useSignal(0);
    const pane = useRef<HTMLDivElement>(null);
    const now = useNow(evidence);
    const scale = useComputed(() => scaleOf(evidence.steps.value, clock.value, now.value));
    const mostZoom = useComputed(() => Math.max(1, (evidence.steps.value.length * STEP_AT_CLOSEST) / width.value));
    const view = useComputed<View>(() => {
        const whole = width.value * zoom.value;
        const folds = scale.value.folds.length * FOLD;
        return {
            scale: scale.value,
            ratio: Math.max(1, whole - folds) / Math.max(0.001, scale.value.seconds),
            left: left.value,
            width: width.value,
        };
    });
    useSize(pane, width);
    const zoomBy = (factor: number, at = width.peek() / 2): void =>
        zoomAround(factor, at, { zoom, left, pane, most: mostZoom.peek() });
    useWheel(pane, zoomBy);
    const steps = evidence.steps.value;
    if (!steps.length)
        return (
            <section class="card timeline" aria-label="Timeline">
                <header>
                    <h2>Timeline</h2>
                    <span class="quiet">No step has been taken yet</span>
                </header>
            </section>
        );
    const whole = placeOf(view.value, scale.value.seconds, scale.value.folds.length);
    return (
        <section class="card timeline" aria-label="Timeline">
            <header>
                <h2>Timeline</h2>
                <span class="quiet small-text">to scale</span>
                <span class="space" />
                <Legend scale={scale.value} />
                <div class="segments small" role="group" aria-label="Clock">
                    <button aria-pressed={clock.value === "active"} onClick={() => (clock.value = "active")}>
                        Active
                    </button>
                    <button aria-pressed={clock.value === "wall"} onClick={() => (clock.value = "wall")}>
                        Wall clock
                    </button>
                </div>
                <div class="segments small" role="group" aria-label="Zoom">
                    <button aria-label="Zoom out" disabled={zoom.value <= 1} onClick={() => zoomBy(0.5)}>
                        −
                    </button>
                    <button aria-label="Zoom in" disabled={zoom.value >= mostZoom.value} onClick={() => zoomBy(2)}>
                        +
                    </button>
                </div>
            </header>
            <div class="timeline-body">
                <Lanes scale={scale.value} />
                <Pane
                    pane={pane}
                    evidence={evidence}
                    view={view}
                    whole={whole}
                    left={left}
                    selected={selected}
                    zoomBy={zoomBy}
                />
            </div>
        </section>
    );
}

interface PaneProps {
    pane: { current: HTMLDivElement | null };
    evidence: Evidence;
    view: Signal<View> | { readonly value: View; peek(): View };
    whole: number;
    left: Signal<number>;
    selected: number | null;
    zoomBy(factor: number, at?: number): void;
}

/** The part that scrolls; its picture is as wide as the pane at any zoom. */
function Pane({ pane, evidence, view, whole, left, selected, zoomBy }: PaneProps) {
    const pointed = useSignal<{ at: number; box: DOMRect } | null>(null);
    const steps = evidence.steps.value;
    const { data } = evidence;
    const point = (at: number | null): void => {
        data.hot.value = at === null ? null : (steps[at]?.index ?? null);
        pointed.value = at === null || !steps[at] ? null : { at, box: boxOf(view.peek(), at, pane.current!) };
    };
    const plot = useMemo(() => <Plot evidence={evidence} view={view.value} />, [view.value]);
    const current = evidence.placeOf(data.hot.value ?? selected);
    const at = current >= 0 ? current : steps.length - 1;
    const move = (to: number): void => {
        const place = Math.max(0, Math.min(steps.length - 1, to));
        revealStep(view.peek(), place, pane.current!);
        left.value = pane.current!.scrollLeft;
        point(place);
    };
    const keys = (event: KeyboardEvent): void => {
        const actions: Record<string, () => void> = {
            ArrowLeft: () => move(at - 1),
            ArrowRight: () => move(at + 1),
            Home: () => move(0),
            End: () => move(steps.length - 1),
            "+": () => zoomBy(2),
            "=": () => zoomBy(2),
            "-": () => zoomBy(0.5),
            Enter: () => go(sessionLink(data.id, steps[at]!.index)),
        };
        if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        actions[event.key]!();
    };
    const stepAt = (event: PointerEvent | MouseEvent): number | null => {
        const x = event.clientX - pane.current!.getBoundingClientRect().left + pane.current!.scrollLeft;
        return stepUnder(view.peek(), x);
    };
    const step = steps[at]!;
    return (
        <div
            class="timeline-pane"
            ref={pane}
            role="slider"
            tabIndex={0}
            aria-label="Steps in time"
            aria-valuemin={1}
            aria-valuemax={steps.length}
            aria-valuenow={at + 1}
            aria-valuetext={`Step ${step.index}, ${duration(step.duration_ms / 1000)}: ${happeningText(step)}`}
            onKeyDown={keys}
            onScroll={(event) => (left.value = event.currentTarget.scrollLeft)}
            onPointerMove={(event) => point(stepAt(event))}
            onPointerLeave={() => point(null)}
            onBlur={() => point(null)}
            onClick={(event) => {
                const place = stepAt(event);
                if (place !== null) go(sessionLink(data.id, steps[place]!.index));
            }}
        >
            <div class="timeline-whole" style={{ width: `${whole}px`, height: `${plotHeight(view.value.scale)}px` }}>
                <Bands evidence={evidence} view={view.value} selected={selected} />
                {plot}
            </div>
            <TimelineTip evidence={evidence} pointed={pointed} />
        </div>
    );
}

function TimelineTip({
    evidence,
    pointed,
}: {
    evidence: Evidence;
    pointed: Signal<{ at: number; box: DOMRect } | null>;
}) {
    const tip = useRef<HTMLDivElement>(null);
    const shown = pointed.value;
    useLayoutEffect(() => {
        if (shown && tip.current) putBeside(tip.current, shown.box);
    }, [shown]);
    const step = shown && evidence.steps.value[shown.at];
    return step ? (
        <div class="tip" ref={tip} aria-hidden="true">
            <StepTip step={step} />
        </div>
    ) : null;
}

/** The moment to which running work is drawn; it moves while something runs. */
function useNow(evidence: Evidence): Signal<number> {
    const now = useSignal(timeNow());
    const isOpen = useComputed(() => evidence.steps.value.at(-1)?.completed_at === null).value;
    useEffect(() => {
        if (!isOpen) return undefined;
        now.value = timeNow();
        const timer = setInterval(() => (now.value = timeNow()), 1000);
        return () => clearInterval(timer);
    }, [isOpen, evidence.steps.value.length]);
    return now;
}

function useSize(pane: { current: HTMLDivElement | null }, width: Signal<number>): void {
    useLayoutEffect(() => {
        if (!pane.current) return undefined;
        const measure = (): void => {
            if (pane.current?.clientWidth) width.value = pane.current.clientWidth;
        };
        const observer = new ResizeObserver(measure);
        observer.observe(pane.current);
        measure();
        return () => observer.disconnect();
    }, [pane.current]);
}

/** Zoom with the wheel and Ctrl; a listener of Preact could not keep the browser from zooming the page. */
function useWheel(pane: { current: HTMLDivElement | null }, zoomBy: (factor: number, at: number) => void): void {
    useEffect(() => {
        const element = pane.current;
        const turn = (event: WheelEvent): void => {
            if (!event.ctrlKey) return;
            event.preventDefault();
            zoomBy(2 ** (-event.deltaY / 200), event.clientX - element!.getBoundingClientRect().left);
        };
        element?.addEventListener("wheel", turn, { passive: false });
        return () => element?.removeEventListener("wheel", turn);
    }, [pane.current]);
}

interface Zoomed {
    zoom: Signal<number>;
    left: Signal<number>;
    pane: { current: HTMLDivElement | null };
    most: number;
}

/** Zoom so that the place under the pointer stays where it is. */
function zoomAround(factor: number, at: number, { zoom, left, pane, most }: Zoomed): void {
    const before = zoom.peek();
    const after = Math.max(1, Math.min(most, before * factor));
    zoom.value = after;
    const wanted = ((left.peek() + at) / before) * after - at;
    requestAnimationFrame(() => {
        if (!pane.current) return;
        pane.current.scrollLeft = wanted;
        left.value = pane.current.scrollLeft;
    });
}

/** The step at a place of the whole line: that whose span is nearest. */
function stepUnder(view: View, x: number): number | null {
    const { spans } = view.scale;
    let low = 0;
    let high = spans.length - 1;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (placeOf(view, spans[middle]!.to, spans[middle]!.foldsAfter) < x) low = middle + 1;
        else high = middle;
    }
    return spans.length ? low : null;
}

function boxOf(view: View, at: number, pane: HTMLElement): DOMRect {
    const span = view.scale.spans[at]!;
    const outer = pane.getBoundingClientRect();
    const from = placeOf(view, span.from, span.foldsBefore) - pane.scrollLeft;
    const to = placeOf(view, span.to, span.foldsAfter) - pane.scrollLeft;
    return new DOMRect(outer.left + from, outer.top + 20, to - from, outer.height - 20);
}

function revealStep(view: View, at: number, pane: HTMLElement): void {
    const span = view.scale.spans[at]!;
    const from = placeOf(view, span.from, span.foldsBefore);
    const to = placeOf(view, span.to, span.foldsAfter);
    if (from < pane.scrollLeft) pane.scrollLeft = from - 16;
    else if (to > pane.scrollLeft + view.width) pane.scrollLeft = to - view.width + 16;
}

function Lanes({ scale }: { scale: Scale }) {
    return (
        <div class="timeline-lanes" style={{ width: `${LABELS}px`, "--tools": scale.toolLanes }} aria-hidden="true">
            <span>Model</span>
            <span class="tools">Tools</span>
            <span class="amounts">Tokens, cost</span>
        </div>
    );
}

const LEGEND: [Kind, string][] = [
    ["model", "model"],
    ["tool", "tool"],
    ["failed", "failed"],
    ["backoff", "backoff"],
    ["person", "person"],
];

function Legend({ scale }: { scale: Scale }) {
    const present = new Set(scale.segments.map(({ kind }) => kind));
    return (
        <span class="timeline-legend">
            {LEGEND.filter(([kind]) => present.has(kind)).map(([kind, word]) => (
                <span key={kind}>
                    <i class={kind} />
                    {word}
                </span>
            ))}
        </span>
    );
}
