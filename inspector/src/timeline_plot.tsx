/** The picture of the timeline: what is in view, with one path for each kind, however many steps there are. */

import { useMemo } from "preact/hooks";
import type { Evidence } from "./evidence";
import { duration, money, sumOf, tokenCount } from "./format";
import { FOLD, placeOf, type View } from "./timeline";
import { tickDistance, type Kind, type Scale, type Segment } from "./timeline_scale";

const AXIS = 20;
const MODEL_TOP = 24;
const TOOLS_TOP = 44;
const LANE = 18;
const BAR = 14;
const AMOUNTS = 28;
const TICK_DISTANCE = 88;
const LETTER = 6.4;
const MARGIN = 4;

/** The height of the picture. */
export function plotHeight({ toolLanes }: Scale): number {
    return TOOLS_TOP + toolLanes * LANE + 8 + AMOUNTS + 4;
}

/** The picture without what the pointer is at, which changes often. */
export function Plot({ evidence, view }: { evidence: Evidence; view: View }) {
    const { scale, width } = view;
    const height = plotHeight(scale);
    const visible = visibleSegments(view);
    return (
        <svg class="timeline-plot" width={width} height={height} aria-hidden="true">
            <Hatches />
            <Axis view={view} height={height} />
            <Amounts evidence={evidence} view={view} height={height} />
            {KINDS.map((kind) => (
                <path
                    key={kind}
                    class={`segment ${kind}`}
                    d={pathOf(
                        visible.filter((each) => each.kind === kind),
                        view,
                    )}
                />
            ))}
            <path class="crosses" d={crosses(visible, view)} />
            {labelled(visible, view).map(({ segment, x, text }) => (
                <text
                    key={`${segment.step} ${segment.lane} ${segment.from} ${segment.kind}`}
                    class={`name ${segment.kind}`}
                    x={x + 4}
                    y={topOf(segment) + 11}
                >
                    {text}
                </text>
            ))}
            <Limits evidence={evidence} view={view} height={height} />
        </svg>
    );
}

const KINDS: Kind[] = ["backoff", "person", "model", "tool", "denied", "failed", "running"];

function Hatches() {
    const hatch = (id: string) => (
        <pattern id={id} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect class="ground" width="5" height="5" />
            <rect class="stroke" width="1.5" height="5" />
        </pattern>
    );
    return (
        <defs>
            {hatch("hatch-backoff")}
            {hatch("hatch-person")}
        </defs>
    );
}

function topOf({ lane }: Segment): number {
    return lane === 0 ? MODEL_TOP : TOOLS_TOP + (lane - 1) * LANE;
}

function xOf(view: View, { from, folds }: Segment): number {
    return placeOf(view, from, folds) - view.left;
}

function widthOf(view: View, { from, to, isFold }: Segment): number {
    return isFold ? FOLD : Math.max(1, (to - from) * view.ratio);
}

/** The segments in view; they are ordered by their steps. */
function visibleSegments(view: View): Segment[] {
    const { segments } = view.scale;
    let low = 0;
    let high = segments.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (stepEnd(view, segments[middle]!) < view.left) low = middle + 1;
        else high = middle;
    }
    const found: Segment[] = [];
    for (let at = low; at < segments.length; at++) {
        const segment = segments[at]!;
        const span = view.scale.spans[segment.step]!;
        if (segment.kind !== "backoff" && placeOf(view, span.from, span.foldsBefore) - view.left > view.width) break;
        const x = xOf(view, segment);
        if (x <= view.width && x + widthOf(view, segment) >= 0) found.push(segment);
    }
    return found;
}

function stepEnd(view: View, segment: Segment): number {
    const span = view.scale.spans[segment.step]!;
    return placeOf(view, span.to, span.foldsAfter);
}

/** Rectangles as one path; those that would share a pixel are drawn once. */
function pathOf(segments: Segment[], view: View): string {
    const drawnTo: number[] = [];
    let path = "";
    for (const segment of segments) {
        const x = xOf(view, segment);
        const width = widthOf(view, segment);
        const { lane } = segment;
        if (x + width <= (drawnTo[lane] ?? -Infinity)) continue;
        drawnTo[lane] = Math.ceil(x + width);
        // A little less wide, so that two that touch can be told apart.
        const shown = Math.max(1, width - 1);
        const corner = Math.min(2, shown / 2);
        path += rounded(x, topOf(segment), shown, BAR, corner);
    }
    return path;
}

function rounded(x: number, y: number, width: number, height: number, corner: number): string {
    const at = (value: number): string => value.toFixed(1);
    if (corner < 1) return `M${at(x)} ${y}h${at(width)}v${height}h${at(-width)}z`;
    const [across, down] = [width - 2 * corner, height - 2 * corner];
    return (
        `M${at(x + corner)} ${y}h${at(across)}q${corner} 0 ${corner} ${corner}v${down}q0 ${corner} ${-corner} ${corner}` +
        `h${at(-across)}q${-corner} 0 ${-corner} ${-corner}v${-down}q0 ${-corner} ${corner} ${-corner}z`
    );
}

/** Failed work has a cross, so that it differs by more than its colour. */
function crosses(segments: Segment[], view: View): string {
    return segments
        .filter((each) => each.kind === "failed" && widthOf(view, each) >= 8)
        .map((each) => {
            const x = xOf(view, each) + widthOf(view, each) / 2 - 3;
            const y = topOf(each) + 4;
            return `M${x.toFixed(1)} ${y}l6 6m0 -6l-6 6`;
        })
        .join("");
}

/** The names of segments that have room for a few letters. */
function labelled(segments: Segment[], view: View): { segment: Segment; x: number; text: string }[] {
    return segments.flatMap((segment) => {
        if (segment.isFold || segment.kind === "failed") return [];
        const start = xOf(view, segment);
        const x = Math.max(0, start);
        const room = Math.floor((Math.min(view.width, start + widthOf(view, segment)) - x - 8) / LETTER);
        const isNamed = segment.lane > 0 && segment.kind !== "person";
        const text = isNamed ? segment.label : `${segment.label} ${duration(segment.seconds)}`;
        if (segment.kind === "model" || room < 4) return [];
        if (!isNamed && room < text.length) return [];
        return [{ segment, x, text: text.length > room ? `${text.slice(0, room - 1)}…` : text }];
    });
}

function Axis({ view, height }: { view: View; height: number }) {
    const { scale, ratio, left, width } = view;
    const distance = tickDistance(TICK_DISTANCE / ratio);
    const from = Math.max(0, Math.floor((left - scale.folds.length * FOLD) / ratio / distance)) * distance;
    const ticks: { x: number; text: string }[] = [];
    for (let at = from; at <= scale.seconds; at += distance) {
        const x = placeOf(view, at, scale.folds.filter((fold) => fold < at).length) - left;
        if (x > width - tickText(at).length * LETTER) break;
        if (x >= -1) ticks.push({ x, text: tickText(at) });
    }
    return (
        <g class="ticks">
            {ticks.map(({ x, text }) => (
                <g key={text}>
                    <path d={`M${x.toFixed(1)} ${AXIS}V${height}`} />
                    <text x={Math.max(0, x)} y="12">
                        {text}
                    </text>
                </g>
            ))}
        </g>
    );
}

function tickText(seconds: number): string {
    if (seconds === 0) return "0 s";
    if (seconds < 120 || seconds % 60)
        return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${Number(seconds.toFixed(2))} s`;
    if (seconds < 7200 || seconds % 3600) return `${seconds / 60} min`;
    return seconds < 172_800 ? `${seconds / 3600} h` : `${Math.round(seconds / 86_400)} days`;
}

/** Tokens and money so far, step by step. */
function Amounts({ evidence, view, height }: { evidence: Evidence; view: View; height: number }) {
    const steps = evidence.steps.value;
    const sums = useMemo(() => {
        let tokens = 0;
        const after = steps.map(({ usage }) => (tokens += usage.total));
        return { after, ...sumOf(steps.map(({ usage }) => usage)) };
    }, [steps]);
    if (!sums.total) return null;
    const base = height - 4;
    const yOf = (tokens: number): string => (base - (tokens / sums.total) * (AMOUNTS - 6)).toFixed(1);
    const { spans } = view.scale;
    let line = "";
    let drawnTo = -Infinity;
    spans.forEach((span, at) => {
        const x = placeOf(view, span.to, span.foldsAfter) - view.left;
        if ((x - drawnTo < 0.5 && at < spans.length - 1) || drawnTo > view.width) return;
        drawnTo = x;
        line += `H${x.toFixed(1)}V${yOf(sums.after[at]!)}`;
    });
    const start = (-view.left).toFixed(1);
    const end = placeOf(view, view.scale.seconds, view.scale.folds.length) - view.left;
    const right = Math.min(end, view.width) - MARGIN;
    const text = `${tokenCount(sums)} tokens${sums.cost == null ? "" : `, ${money(sums.cost)}`}`;
    // The line does not run between the text and the edge, where it would look like another digit.
    const left = right - text.length * 6.5;
    return (
        <g class="amounts">
            <path class="area" d={`M${start} ${base}${line}V${base}Z`} />
            <path class="line" d={`M${start} ${base}${line}`} />
            {end <= view.width + 1 && (
                <>
                    <rect class="behind" x={left} y={base - 15} width={right + MARGIN + 1 - left} height="14" />
                    <text x={right} y={base - 4}>
                        {text}
                    </text>
                </>
            )}
        </g>
    );
}

/** The step under the pointer, and the one that is open. */
export function Bands({ evidence, view, selected }: { evidence: Evidence; view: View; selected: number | null }) {
    const band = (index: number | null, name: string) => {
        const span = view.scale.spans[evidence.placeOf(index)];
        if (!span) return null;
        const from = placeOf(view, span.from, span.foldsBefore);
        const to = placeOf(view, span.to, span.foldsAfter);
        return (
            <i
                class={`timeline-band ${name}`}
                style={{ left: `${from - 1}px`, width: `${Math.max(3, to - from + 1)}px` }}
            />
        );
    };
    return (
        <>
            {band(selected, "selected")}
            {band(evidence.data.hot.value, "hot")}
        </>
    );
}

/** Where a what-if ends, and now. */
function Limits({ evidence, view, height }: { evidence: Evidence; view: View; height: number }) {
    const cut = evidence.cutFrom.value;
    const span = view.scale.spans[Math.min(cut, view.scale.spans.length) - 1];
    const end = placeOf(view, view.scale.seconds, view.scale.folds.length) - view.left;
    const isOpen = evidence.steps.value.at(-1)?.completed_at === null;
    const x = cut === 0 ? -view.left : span ? placeOf(view, span.to, span.foldsAfter) - view.left : 0;
    return (
        <>
            {cut !== Infinity && (
                <g class="what-if-end">
                    <rect x={x} y={AXIS} width={Math.max(0, end - x)} height={height - AXIS} />
                    <path d={`M${x.toFixed(1)} ${AXIS - 6}V${height}`} />
                </g>
            )}
            {isOpen && <path class="now" d={`M${Math.min(end, view.width - 1).toFixed(1)} ${AXIS - 6}V${height}`} />}
        </>
    );
}
