/** The whole of a long run on one line; the part that the ledger shows can be moved. */

import { useComputed, useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { happeningOf, type Evidence, type Happening } from "./evidence";
import type { Layout } from "./ledger";

// Marks are drawn in this many places: more than a screen has pixels for would not be seen.
const PLACES = 600;
const HEIGHT = 24;

type Mark = "error" | "person" | "answer" | "end";

const MARKS: Record<Happening, Mark | null> = {
    error: "error",
    failed: "error",
    denied: "person",
    person: "person",
    answer: "answer",
    calls: null,
    open: null,
};

interface Properties {
    evidence: Evidence;
    scroller: { current: HTMLDivElement | null };
    layout: Layout;
    /** Changes when the ledger was scrolled far enough to draw other columns. */
    scrolled: Signal<number>;
}

export function Minimap({ evidence, scroller, layout }: Properties) {
    const { columnWidth, ruleWidth, gutterWidth } = layout;
    const steps = evidence.steps.value;
    const total = steps.length * columnWidth;
    const left = useSignal(scroller.current?.scrollLeft ?? 0);
    useEffect(() => {
        const element = scroller.current!;
        const follow = (): void => void (left.value = element.scrollLeft);
        follow();
        element.addEventListener("scroll", follow, { passive: true });
        return () => element.removeEventListener("scroll", follow);
    }, [total]);
    const room = Math.max(columnWidth, (scroller.current?.clientWidth ?? 800) - ruleWidth - gutterWidth);
    const center = (event: PointerEvent): void => {
        const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
        scroller.current!.scrollLeft = ((event.clientX - box.left) / box.width) * total - room / 2;
    };
    const firstShown = Math.min(steps.length, Math.floor(left.value / columnWidth) + 1);
    const lastShown = Math.min(steps.length, Math.floor((left.value + room) / columnWidth));
    const keys = (event: KeyboardEvent): void => {
        const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[
            event.key
        ];
        if (by === undefined) return;
        event.preventDefault();
        scroller.current!.scrollLeft = Math.max(0, Math.min(total, left.peek() + by * columnWidth));
    };
    return (
        <div
            class="minimap"
            role="slider"
            tabIndex={0}
            aria-label="The steps that the ledger shows"
            aria-valuemin={1}
            aria-valuemax={steps.length}
            aria-valuenow={firstShown}
            aria-valuetext={`Steps ${firstShown} to ${lastShown} of ${steps.length}`}
            onKeyDown={keys}
            onPointerDown={(event) => {
                event.currentTarget.setPointerCapture(event.pointerId);
                center(event);
            }}
            onPointerMove={(event) => event.buttons && center(event)}
        >
            <Marks evidence={evidence} />
            <i
                class="minimap-window"
                style={{ left: `${(left.value / total) * 100}%`, width: `${Math.min(100, (room / total) * 100)}%` }}
            />
        </div>
    );
}

/** One path for each kind of mark, however many steps there are. */
function Marks({ evidence }: { evidence: Evidence }) {
    const paths = useComputed(() => {
        const steps = evidence.steps.value;
        const end = evidence.recordedEnd.value;
        const places: Record<Mark, Set<number>> = {
            error: new Set(),
            person: new Set(),
            answer: new Set(),
            end: new Set(),
        };
        const placeOf = (at: number): number => ((at + 0.5) / steps.length) * PLACES;
        steps.forEach((step, at) => {
            const mark = end?.at === at && step.outcome?.decision === "forbid" ? "end" : MARKS[happeningOf(step)];
            if (mark) places[mark].add(Math.round(placeOf(at)));
        });
        const most = steps.reduce((top, { usage }) => Math.max(top, usage.total), 1);
        const stride = Math.max(1, Math.floor(steps.length / PLACES));
        let area = `M0 ${HEIGHT}`;
        for (let at = 0; at < steps.length; at += stride)
            area += `L${placeOf(at).toFixed(1)} ${(HEIGHT - (steps[at]!.usage.total / most) * 14).toFixed(1)}`;
        const marks = Object.entries(places).map(
            ([name, at]) => [name, [...at].map((x) => `M${x} 3v18`).join("")] as const,
        );
        return { area: `${area}L${PLACES} ${HEIGHT}Z`, marks };
    }).value;
    const cut = evidence.cutFrom.value;
    const count = evidence.steps.value.length;
    return (
        <svg viewBox={`0 0 ${PLACES} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
            <path class="area" d={paths.area} />
            {paths.marks.map(([name, path]) => (
                <path key={name} class={`mark ${name}`} d={path} vector-effect="non-scaling-stroke" />
            ))}
            {cut < count && (
                <rect
                    class="past"
                    x={(cut / count) * PLACES}
                    y="0"
                    width={PLACES - (cut / count) * PLACES}
                    height={HEIGHT}
                />
            )}
        </svg>
    );
}
