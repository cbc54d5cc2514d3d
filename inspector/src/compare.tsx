/** Two runs side by side, aligned by step, with the first difference marked. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { shouldRenderContent, type UiMessage } from "whyloop-ui";
import { aligned } from "./alignment";
import { get, sessionPath, type ApiError, type Trace } from "./api";
import { callTone } from "./call";
import { ChooseSession } from "./choose_session";
import { differenceOf, differenceText, markOf, type ComparedStep, type Difference } from "./differences";
import { count, counted, duration, money, tokenCount, voteOf } from "./format";
import { Headline, lastDecided, limitsText } from "./headline";
import { CALL_ICONS, CALL_WORDS, Icon, StatusSign, VoteSign } from "./icons";
import { Markdown } from "./markdown";
import { compareLink, go, sessionLink } from "./routes";
import { stepsOf } from "./session_data";
import "./styles/compare.css";

interface Run {
  trace: Trace;
  steps: ComparedStep[];
}

// A step takes much room, so a long comparison is drawn in parts.
const PART = 60;

export function Compare({ left, right }: { left: string; right: string }) {
  const [one, other] = [useRun(left), useRun(right)];
  const shown = useSignal(PART);
  const rows = useMemo(() => (one.run && other.run ? rowsOf(one.run, other.run) : []), [one.run, other.run]);
  const first = rows.findIndex(({ difference }) => !difference.isSame);
  useEffect(() => void (shown.value = Math.max(PART, first + PART)), [left, right, first]);
  return (
    <div class="page compare">
      <header>
        <h1>Compare</h1>
        <span class="quiet">two runs, aligned by step</span>
      </header>
      <div class="card compare-card">
        <div class="compare-row heads">
          <Head id={left} state={one} side="left" onChoose={(id) => go(compareLink(id, right))} />
          <div class="middle">
            <span class="versus">vs</span>
          </div>
          <Head id={right} state={other} side="right" onChoose={(id) => go(compareLink(left, id))} />
        </div>
        {one.run && other.run && <Facts left={one.run.trace} right={other.run.trace} />}
        {one.run && other.run && first === -1 && (
          <p class="same-bar">No difference: both runs did the same in {counted(rows.length, "step")}.</p>
        )}
        {rows.slice(0, shown.value).map((row, index) => (
          <Row key={index} row={row} isFirst={index === first} left={left} right={right} />
        ))}
      </div>
      {rows.length > shown.value && (
        <button type="button" class="button more" onClick={() => (shown.value += PART)}>
          Show {count(rows.length - shown.value)} more steps
        </button>
      )}
    </div>
  );
}

// Reading

interface Reading {
  run: Run | null;
  problem: string;
}

function useRun(id: string): Reading {
  const state = useSignal<Reading>({ run: null, problem: "" });
  useEffect(() => {
    state.value = { run: null, problem: "" };
    if (!id) return undefined;
    const closing = new AbortController();
    readRun(id, closing.signal).then(
      (run) => void (state.value = { run, problem: "" }),
      (cause: ApiError) => void (closing.signal.aborted || (state.value = { run: null, problem: cause.message })),
    );
    return () => closing.abort();
  }, [id]);
  return state.value;
}

async function readRun(id: string, signal: AbortSignal): Promise<Run> {
  const [trace, texts] = await Promise.all([readTrace(id, signal), readTexts(id, signal)]);
  const text = (step: Trace["steps"][number]): string =>
    texts.get(`${step.execution_id}:${step.number}:assistant`) ?? "";
  return { trace, steps: trace.steps.map((step) => ({ step, text: text(step) })) };
}

async function readTrace(id: string, signal: AbortSignal): Promise<Trace> {
  const trace = await get<Trace>(`${sessionPath(id)}/trace`, {}, signal);
  for (let page = trace; page.has_more;) {
    page = await get<Trace>(`${sessionPath(id)}/trace`, { after: page.next }, signal);
    trace.steps.push(...page.steps);
  }
  return trace;
}

/** Return what the model said, by the ids of the messages. */
async function readTexts(id: string, signal: AbortSignal): Promise<Map<string, string>> {
  const texts = new Map<string, string>();
  for (let after: number | null = 0; after !== null;) {
    const page: { messages: UiMessage[]; has_more: boolean; next: number | null } = await get(
      `${sessionPath(id)}/messages`,
      { after },
      signal,
    );
    for (const message of page.messages) {
      if (message.role === "assistant" && shouldRenderContent(message)) texts.set(message.id, message.content);
    }
    after = page.has_more ? page.next : null;
  }
  return texts;
}

// Drawing

interface RowData {
  left: ComparedStep | undefined;
  right: ComparedStep | undefined;
  difference: Difference;
  /** Whether a run that has no step here has none after it either. */
  hasEnded: boolean;
}

function rowsOf(left: Run, right: Run): RowData[] {
  const rows = aligned(left.steps, right.steps, markOf);
  const lastOf = (side: 0 | 1): number => rows.findLastIndex((row) => row[side]);
  const end = Math.min(lastOf(0), lastOf(1));
  return rows.map(([one, other], at) => ({
    left: one,
    right: other,
    difference: differenceOf(one, other),
    hasEnded: at > end,
  }));
}

interface HeadProps {
  id: string;
  state: Reading;
  side: string;
  onChoose: (id: string) => void;
}

function Head({ id, state: { run, problem }, side, onChoose }: HeadProps) {
  const steps = run ? latestSteps(run) : [];
  const outcome = lastDecided(steps);
  const decided = outcome?.evaluations.find(({ criterion }) => criterion === run?.trace.resolved_by);
  return (
    <div class="side">
      <div class="chosen">
        <ChooseSession value={id} label={`Session on the ${side}`} onChoose={onChoose} />
        {run && <StatusSign status={run.trace.status} />}
      </div>
      {problem && (
        <p class="t-f" role="alert">
          {problem}
        </p>
      )}
      {!id && <p class="quiet">Choose a session: type a part of its id, its question or its answer.</p>}
      {run && (
        <div class="compare-headline">
          {decided && <VoteSign vote={voteOf(decided.decision)} size={28} />}
          <h2>
            <Headline trace={run.trace} steps={steps} outcome={outcome} />
          </h2>
        </div>
      )}
    </div>
  );
}

/** The steps of the latest execution, which the headline is about. */
function latestSteps({ trace }: Run): readonly Trace["steps"][number][] {
  const execution = trace.executions?.at(-1);
  return execution ? stepsOf(execution, trace.executions, trace.steps) : [];
}

function Facts({ left, right }: { left: Trace; right: Trace }) {
  const steps = (trace: Trace) => {
    const limit = trace.limits?.find(({ option }) => option === "max_steps");
    return (
      <>
        <b>{count(trace.step_count)}</b>
        {limit ? ` of ${count(limit.limit + limit.granted)}` : ""}
      </>
    );
  };
  const tokens = (trace: Trace) => (
    <>
      <b>{tokenCount(trace.usage)}</b>
      {trace.usage.cost ? `, ${money(trace.usage.cost)}` : ""}
    </>
  );
  const facts: [string, (trace: Trace) => ComponentChildren][] = [
    ["steps", steps],
    ["tokens", tokens],
    ["active", (trace) => <b>{duration(trace.times.active_seconds)}</b>],
    ["rules", (trace) => limitsText(trace) || "no limits"],
    ["agent", (trace) => trace.agent || "unnamed"],
  ];
  return (
    <>
      {facts.map(([name, show]) => (
        <div key={name} class="compare-row facts-row">
          <div class="side">{show(left)}</div>
          <div class="middle quiet">{name}</div>
          <div class="side">{show(right)}</div>
        </div>
      ))}
    </>
  );
}

interface RowProps {
  row: RowData;
  isFirst: boolean;
  left: string;
  right: string;
}

function Row({ row, isFirst, left, right }: RowProps) {
  const { difference, hasEnded } = row;
  const numbers = [row.left, row.right].flatMap((each) => each?.step.index ?? []);
  const word = difference.isSame ? "same" : "differs";
  return (
    <>
      {isFirst && (
        <p class="difference-bar" role="status">
          First difference: step {numbers[0]}. {differenceText(row.left, row.right, hasEnded)}
        </p>
      )}
      <div class={`compare-row step-row ${word} ${isFirst ? "first" : ""}`}>
        <Side id={left} compared={row.left} difference={difference} hasEnded={hasEnded} />
        <div class="middle">
          <span class="step-number">{[...new Set(numbers)].join(" · ")}</span>
          <span class="quiet">{word}</span>
        </div>
        <Side id={right} compared={row.right} difference={difference} hasEnded={hasEnded} />
      </div>
    </>
  );
}

interface SideProps {
  id: string;
  compared: ComparedStep | undefined;
  difference: Difference;
  hasEnded: boolean;
}

function Side({ id, compared, difference, hasEnded }: SideProps) {
  if (!compared)
    return (
      <div class="side">
        <p class="quiet">{hasEnded ? "The run has ended before this step." : "This run has no such step."}</p>
      </div>
    );
  const { step, text } = compared;
  const facts = [step.usage.total ? counted(step.usage.total, "token") : "", duration(step.duration_ms / 1000)];
  const tint = (differs: boolean): string => (differs ? "tinted" : "");
  return (
    <div class="side">
      <p class="small-text quiet">
        <a class="link" href={sessionLink(id, step.index)}>
          {id}, step {step.index}
        </a>{" "}
        · {facts.filter(Boolean).join(" · ")}
      </p>
      {text && (
        <div class={`said ${tint(difference.text)}`}>
          <Markdown text={text} />
        </div>
      )}
      {step.failures
        .filter(({ tool_call_id: call }) => !call)
        .map((failure, index) => (
          <p key={index} class="t-f plain-text">
            {failure.message}
          </p>
        ))}
      {step.tool_calls.map((call, place) => (
        <div key={call.id} class={`call ${call.status} ${tint(difference.calls.has(place))}`}>
          <div class="call-line still">
            <Icon name={CALL_ICONS[call.status]} class={call.status === "succeeded" ? "t-s" : callTone(call.status)} />
            <span class="call-name">{call.name}</span>
            <span class="call-summary">{argumentValues(call.arguments)}</span>
            <span class={`call-state ${callTone(call.status)}`}>
              {CALL_WORDS[call.status]} <span class="quiet">{duration((call.duration_ms ?? 0) / 1000)}</span>
            </span>
          </div>
          {call.error && <p class={`call-note ${callTone(call.status)}`}>{call.error}</p>}
          {!call.error && difference.calls.has(place) && call.result && (
            <p class="call-note quiet">{call.result.slice(0, 300)}</p>
          )}
        </div>
      ))}
      <Outcome step={step} difference={difference} />
    </div>
  );
}

function argumentValues(given: unknown): string {
  if (typeof given !== "object" || given === null) return typeof given === "string" ? given : "";
  return Object.values(given)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .filter(Boolean)
    .join(", ");
}

function Outcome({ step, difference }: { step: ComparedStep["step"]; difference: Difference }) {
  if (!step.outcome) return null;
  const { evaluations, resolved_by: rule, should_continue: continues, stop_reason: reason } = step.outcome;
  const [word, tone] = continues
    ? ["continue", "t-r"]
    : reason === null
      ? ["pause", "t-w"]
      : ["stop", reason === "completed" ? "t-s" : "t-f"];
  return (
    <div class="outcome-line">
      {evaluations.map(({ criterion, decision, reason: why }, index) => (
        <span
          key={index}
          title={`${criterion}: ${why}`}
          class={`${criterion === rule ? "decided" : ""} ${difference.votes.has(criterion) ? "tinted" : ""}`}
        >
          <VoteSign vote={voteOf(decision)} label={`${criterion}: ${decision}`} />
        </span>
      ))}
      <span>
        <b class={tone}>{word}</b>
        {rule && <span class="quiet"> by {rule}</span>}
      </span>
    </div>
  );
}
