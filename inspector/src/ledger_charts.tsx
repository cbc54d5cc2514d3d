/** Tokens per step and headroom per limit, in the columns of the ledger. */

import { useComputed } from "@preact/signals";
import type { Step } from "./api";
import type { Evidence, LimitUse } from "./evidence";
import { count } from "./format";
import type { Layout } from "./ledger";

const BARS_HEIGHT = 36;
const LINES_HEIGHT = 54;
// The first line is solid, the others differ by their dashes.
const DASHES = ["", "5 3", "1.5 3", "8 3 2 3", "2 2"];

/** The tokens of a step, or a dash if its answer did not report them. */
export function tokenText(step: Step): string {
    return step.usage.total ? count(step.usage.total) : "–";
}

/** One bar for each step; the highest is that of the whole run, also if it is not in view. */
export function TokenBars({ evidence, layout }: { evidence: Evidence; layout: Layout }) {
    const most = useComputed(() =>
        evidence.steps.value.reduce((top, { usage }) => Math.max(top, usage.total), 1),
    ).value;
    const { columnWidth, first, last } = layout;
    const steps = evidence.steps.value;
    const cut = evidence.cutFrom.value;
    const width = Math.min(10, columnWidth - 8);
    return (
        <svg
            class="token-bars"
            width={(last - first) * columnWidth}
            height={BARS_HEIGHT}
            style={{ marginLeft: `${first * columnWidth}px` }}
            role="img"
            aria-label={`Tokens of each step, at most ${count(most)}`}
        >
            <path class="base" d={`M0 ${BARS_HEIGHT - 0.5}H${(last - first) * columnWidth}`} />
            {steps.slice(first, last).map((step, offset) => {
                const height = (step.usage.total / most) * (BARS_HEIGHT - 8);
                return (
                    <rect
                        key={offset}
                        class={first + offset >= cut ? "cut" : ""}
                        x={offset * columnWidth + (columnWidth - width) / 2}
                        y={BARS_HEIGHT - height}
                        width={width}
                        height={height}
                        rx="1"
                    />
                );
            })}
        </svg>
    );
}

/** The part of a limit that is left after a step: 1 is all of it. */
function leftAt(evidence: Evidence, at: number, limit: LimitUse): number | null {
    const room = evidence.headroom(at, limit);
    return room && (room.limit === Infinity ? 1 : Math.max(0, Math.min(1, 1 - room.used / room.limit)));
}

/** How each limit is used up. */
export function HeadroomChart({ evidence, layout }: { evidence: Evidence; layout: Layout }) {
    const { columnWidth, first, last } = layout;
    const width = (last - first) * columnWidth;
    // One more on each side, so that the lines do not begin in the view.
    const from = Math.max(0, first - 1);
    const to = Math.min(evidence.steps.value.length, last + 1, evidence.cutFrom.value);
    return (
        <svg
            class="headroom"
            width={width}
            height={LINES_HEIGHT}
            style={{ marginLeft: `${first * columnWidth}px` }}
            role="img"
            aria-label={`Headroom left: ${summaries(evidence)
                .map(({ limit, percent }) => `${limit.noun} ${percent} %`)
                .join(", ")}`}
        >
            <path class="base" d={`M0 5.5H${width}M0 ${LINES_HEIGHT / 2}H${width}M0 ${LINES_HEIGHT - 5.5}H${width}`} />
            {evidence.limitUses.value.map((limit, order) => {
                const points: [number, number][] = [];
                for (let at = from; at < to; at++) {
                    const left = leftAt(evidence, at, limit);
                    if (left !== null)
                        points.push([(at - first + 0.5) * columnWidth, 5.5 + (1 - left) * (LINES_HEIGHT - 11)]);
                }
                const end = points.at(-1);
                const isUsedUp = end !== undefined && end[1] > LINES_HEIGHT - 6;
                return (
                    end && (
                        <g key={limit.rule} class={isUsedUp ? "up" : ""}>
                            <path
                                class="line"
                                d={`M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`}
                                stroke-dasharray={DASHES[order]}
                            />
                            {to <= last && <circle cx={end[0]} cy={end[1]} r="2.5" />}
                        </g>
                    )
                );
            })}
        </svg>
    );
}

function summaries(evidence: Evidence): { limit: LimitUse; percent: number }[] {
    const end = Math.min(evidence.steps.value.length, evidence.cutFrom.value) - 1;
    return evidence.limitUses.value.map((limit) => {
        let left: number | null = null;
        for (let at = end; left === null && at >= 0; at--) left = leftAt(evidence, at, limit);
        return { limit, percent: Math.round((left ?? 1) * 100) };
    });
}

/** What is left of each limit at the end. */
export function HeadroomLegend({ evidence }: { evidence: Evidence }) {
    return (
        <ul class="headroom-legend">
            {summaries(evidence).map(({ limit, percent }, order) => (
                <li key={limit.rule} class={percent === 0 ? "t-f" : ""}>
                    <svg width="20" height="4" aria-hidden="true">
                        <path d="M0 2h20" stroke="currentColor" stroke-width="1.75" stroke-dasharray={DASHES[order]} />
                    </svg>
                    {limit.noun} {percent} %
                </li>
            ))}
        </ul>
    );
}
