/** The charts of the list: small, without axes that lie, and with the same numbers as text. */

import type { Stats, Survey } from "./api";
import { count, counted } from "./format";
import "./styles/charts.css";

type Group = keyof Stats["days"][number]["counts"];

const GROUPS: [Group, string][] = [
  ["completed", "Completed"], ["limit", "Limit"], ["error", "Error"], ["person", "Guard or person"],
];
const WIDTH = 392;
const HEIGHT = 112;
const LEFT = 32;
const TOP = 8;
const BOTTOM = 92;

/** How runs ended, a bar for each day. */
export function StopReasons({ days }: { days: Stats["days"] }) {
  const highest = Math.max(1, ...days.map(({ counts }) => sum(counts)));
  const step = niceStep(highest);
  const most = Math.ceil(highest / step) * step;
  const y = (value: number): number => BOTTOM - (value / most) * (BOTTOM - TOP);
  const slot = (WIDTH - LEFT) / Math.max(1, days.length);
  const labelEvery = Math.ceil(days.length / 5);
  return (
    <figure class="stop-reasons">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
        <defs>
          <pattern id="hatch" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect width="2" height="4" />
          </pattern>
        </defs>
        {range(0, most, step).map((value) => (
          <g key={value}>
            <line x1={LEFT} x2={WIDTH} y1={y(value)} y2={y(value)} />
            <text class="end" x={LEFT - 8} y={y(value) + 4}>{count(value)}</text>
          </g>
        ))}
        {days.map((day, index) => <DayBar key={day.day} day={day} x={LEFT + slot * index} width={slot} y={y} />)}
        {days.map(({ day }, index) => (days.length - 1 - index) % labelEvery === 0 && (
          <text
            key={day} class={index === days.length - 1 ? "end" : "middle"} y={HEIGHT - 4}
            x={index === days.length - 1 ? WIDTH : LEFT + slot * (index + 0.5)}
          >
            {index === days.length - 1 ? "today" : shortDay(day)}
          </text>
        ))}
      </svg>
      <figcaption class="legend">
        {GROUPS.map(([group, name]) => (
          <span key={group}>
            <svg width="8" height="8" aria-hidden="true"><rect class={group} width="8" height="8" rx="1" /></svg>{name}
          </span>
        ))}
      </figcaption>
      <DayTable days={days} />
    </figure>
  );
}

function DayBar({ day, x, width, y }: {
  day: Stats["days"][number]; x: number; width: number; y: (value: number) => number;
}) {
  let below = 0;
  const parts = GROUPS.map(([group]) => {
    const value = day.counts[group];
    const top = y(below + value);
    const height = y(below) - top;
    below += value;
    // A gap of one pixel between the parts, which differ not by colour alone.
    return value > 0 && (
      <rect
        key={group} class={group} rx="1" x={x + width * 0.14} y={top} width={width * 0.72}
        height={Math.max(1, height - 1)}
      />
    );
  });
  return (
    <g>
      <title>{dayText(day)}</title>
      <rect class="hit" x={x} y={TOP} width={width} height={BOTTOM - TOP} />
      {parts}
    </g>
  );
}

/** The numbers of the chart for readers that do not see it. */
function DayTable({ days }: { days: Stats["days"] }) {
  return (
    <table class="hidden-text">
      <caption>How runs ended on each day</caption>
      <thead>
        <tr><th scope="col">Day</th>{GROUPS.map(([group, name]) => <th key={group} scope="col">{name}</th>)}</tr>
      </thead>
      <tbody>
        {days.map(({ day, counts }) => (
          <tr key={day}>
            <th scope="row">{shortDay(day)}</th>
            {GROUPS.map(([group]) => <td key={group}>{counts[group]}</td>)}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function dayText({ day, counts }: Stats["days"][number]): string {
  const found = GROUPS.filter(([group]) => counts[group]);
  const parts = found.map(([group, name]) => `${name.toLowerCase()} ${count(counts[group])}`);
  return `${shortDay(day)}: ${parts.join(", ") || "none"}`;
}

function shortDay(day: string): string {
  return new Date(`${day}T12:00:00`).toLocaleDateString("en-US", { month: "short", day: "numeric" });
}

function sum(counts: Record<Group, number>): number {
  return GROUPS.reduce((total, [group]) => total + counts[group], 0);
}

function range(from: number, to: number, step: number): number[] {
  return Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, index) => from + index * step);
}

/** The distance of two or three round numbers up to a value. */
function niceStep(value: number): number {
  const rough = value / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
  return Math.max(1, step);
}

const RULE_TONES: Record<string, string> = { ToolCallPresenceCheck: "s", ApprovalRequired: "w" };
const MOST_RULES = 7;

/** How often each rule decided; a click shows only those sessions. */
export function DecidedBy({ rules, chosen, choose }: {
  rules: Stats["rules"]; chosen: string; choose: (rule: string) => void;
}) {
  const most = Math.max(1, ...rules.map((rule) => rule.count));
  const at = rules.findIndex(({ rule }) => rule === chosen);
  // The one that is chosen is always there.
  const shown = at < MOST_RULES ? rules.slice(0, MOST_RULES) : [...rules.slice(0, MOST_RULES - 1), rules[at]!];
  if (rules.length === 0) return <p class="quiet small-text none">No rule decided any of these sessions.</p>;
  return (
    <ul class="decided-by">
      {shown.map(({ rule, count: value }) => (
        <li key={rule}>
          <button
            class={`bar tone-${RULE_TONES[rule] ?? "f"}`} aria-pressed={rule === chosen}
            onClick={() => choose(rule === chosen ? "" : rule)}
          >
            <span class="clip">{rule}</span>
            <i style={{ "--share": `${Math.max(0.5, (value / most) * 100)}%` }} />
            <span class="number">
              {count(value)} <span class="hidden-text">{value === 1 ? "session" : "sessions"}</span>
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

const MARKS: Record<string, { name: string; plural: string; path: (x: number) => string }> = {
  ".": { name: "ordinary", plural: "ordinary", path: (x) => `M${x} 8h4v4h-4z` },
  r: { name: "retry", plural: "retries", path: (x) => `M${x} 5h4v7h-4z` },
  e: { name: "error", plural: "errors", path: (x) => `M${x} 0h4v12h-4zM${x + 1} 1v6h2v-6z` },
  p: { name: "wait for a person", plural: "waits for a person", path: (x) => `M${x} 0h4v5h-4zM${x} 7h4v5h-4z` },
  s: { name: "natural end", plural: "natural ends", path: (x) => `M${x} 0h4v12h-4z` },
  f: { name: "forbidden to continue", plural: "forbidden to continue", path: (x) => `M${x} 0h4v12h-4z` },
};
const MARK_NAMES: Record<string, string> = {
  ".": "ordinary", r: "retry", e: "error", p: "person", s: "stop", f: "forbid",
};

/** A bar for each of the last steps, one path for each kind. */
export function StepMarks({ marks, total }: { marks: string; total: number }) {
  if (!marks) return null;
  const kinds = Object.keys(MARKS).filter((kind) => marks.includes(kind));
  const paths = kinds.map((kind) => {
    const at = [...marks].flatMap((mark, index) => (mark === kind ? [index * 5] : []));
    return { kind, d: at.map(MARKS[kind]!.path).join(""), found: at.length };
  });
  const notable = paths.filter(({ kind }) => kind !== ".");
  const words = notable.map(({ kind, found }) => `${found} ${found === 1 ? MARKS[kind]!.name : MARKS[kind]!.plural}`);
  const steps = counted(total, "step");
  const beginning = total > marks.length ? `the last ${marks.length} of ${steps}` : steps;
  const label = words.length ? `${beginning}: ${words.join(", ")}` : beginning;
  return (
    <svg class="step-marks" width={marks.length * 5 - 1} height="12" role="img" aria-label={label}>
      <title>{label}</title>
      {paths.map(({ kind, d }) => <path key={kind} class={MARK_NAMES[kind]} d={d} fill-rule="evenodd" />)}
    </svg>
  );
}

const CURVE = { width: 240, height: 40 };

/** How many runs each value of a limit would have cut: a line, and below it the completed ones. */
export function SurveyCurve({ survey, chosen, safe }: { survey: Survey; chosen: number; safe: number | null }) {
  const { rows, runs } = survey;
  const x = (index: number): number => (rows.length > 1 ? (index / (rows.length - 1)) * CURVE.width : 0);
  const y = (value: number): number => CURVE.height - (value / Math.max(1, runs)) * (CURVE.height - 4);
  const area = (of: (row: Survey["rows"][number]) => number): string => {
    const line = rows.map((row, index) => `L${x(index)} ${y(of(row))}`).join("");
    return `M0 ${CURVE.height}${line}L${CURVE.width} ${CURVE.height}z`;
  };
  const box = `0 0 ${CURVE.width} ${CURVE.height}`;
  return (
    <svg class="survey-curve" viewBox={box} preserveAspectRatio="none" aria-hidden="true">
      <path class="cut" d={area(({ cut }) => cut)} />
      <path class="completed" d={area(({ completed }) => completed)} />
      {safe !== null && <line class="safe" x1={x(safe)} x2={x(safe)} y1="0" y2={CURVE.height} />}
      <line class="chosen" x1={x(chosen)} x2={x(chosen)} y1="0" y2={CURVE.height} />
    </svg>
  );
}
