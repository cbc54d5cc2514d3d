/** One step: what the model saw, said and called, what came back, and every vote. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { fork } from "./actions";
import { get, may, sessionPath, type ApiError, type Info, type Outcome, type Step, type WholeStep } from "./api";
import { count, counted, duration, moment, money, voteOf, voteWord } from "./format";
import { Icon, VoteSign } from "./icons";
import { sessionLink } from "./routes";
import type { SessionData } from "./session_data";
import { RawStep } from "./step_raw";
import { RequestView } from "./step_request";
import { ResponseView } from "./step_response";
import "./styles/step.css";

const TABS = { decision: "Decision", request: "Request", response: "Response", raw: "JSON" };

type Tab = keyof typeof TABS;

// The part that was chosen last, which the next step shows too.
let chosen: Tab = "decision";

export function StepDetail({ data, index, info }: { data: SessionData; index: number; info: Info | null }) {
  const tab = useSignal<Tab>(chosen);
  const known = stepOf(data, index);
  const { step, problem } = useStep(data, index, known);
  const total = data.steps.value.length + (data.trace.value?.open_step ? 1 : 0);
  const choose = (name: Tab): void => void (tab.value = chosen = name);
  return (
    <section class="card step-detail" aria-label={`Step ${index}`}>
      <StepHeader data={data} index={index} total={total} step={known} canFork={may(info, "manage")} />
      <Tabs tab={tab.value} onChoose={choose} />
      <div class="step-body" id="step-body" role="tabpanel" tabIndex={0} aria-label={TABS[tab.value]}>
        {!known && total > 0 && <p class="quiet">This session has {counted(total, "step")}.</p>}
        {problem && tab.value !== "decision" && (
          <p class="quiet" role="alert">
            {problem}
          </p>
        )}
        {known && tab.value === "decision" && <DecisionView data={data} step={known} />}
        {known && tab.value === "request" && (
          <RequestView key={index} data={data} index={index} request={step?.request_sent} />
        )}
        {known && tab.value === "response" && <ResponseView key={index} step={step ?? known} />}
        {known && tab.value === "raw" && <RawStep key={index} data={data} step={step ?? known} />}
      </div>
    </section>
  );
}

function stepOf(data: SessionData, index: number): Step | undefined {
  const open = data.trace.value?.open_step;
  return data.steps.value[index - 1] ?? (open?.index === index ? open : undefined);
}

/** Request the whole step, and again when it has changed. */
function useStep(data: SessionData, index: number, known: Step | undefined) {
  const step = useSignal<WholeStep | null>(null);
  const problem = useSignal("");
  const version = known && `${known.completed_at} ${known.tool_calls.map(({ status }) => status).join()}`;
  useEffect(() => {
    if (!known) return undefined;
    const closing = new AbortController();
    get<WholeStep>(`${sessionPath(data.id)}/steps/${index}`, {}, closing.signal, data.server).then(
      (found) => ((step.value = found), (problem.value = "")),
      (cause: ApiError) => void (closing.signal.aborted || (problem.value = cause.message)),
    );
    return () => closing.abort();
  }, [data, index, version]);
  return { step: step.value?.index === index ? step.value : null, problem: problem.value };
}

interface HeaderProps {
  data: SessionData;
  index: number;
  total: number;
  step: Step | undefined;
  canFork: boolean;
}

function StepHeader({ data, index, total, step, canFork }: HeaderProps) {
  const facts = step && [step.usage.total ? counted(step.usage.total, "token") : "", duration(step.duration_ms / 1000)];
  const link = (to: number, label: string, icon: "left" | "right") =>
    to >= 1 && to <= total ? (
      <a class="plain" href={sessionLink(data.id, to)} aria-label={label}>
        <Icon name={icon} />
      </a>
    ) : (
      <span class="plain off">
        <Icon name={icon} />
      </span>
    );
  const target = { id: data.id, canRun: true, server: data.server };
  return (
    <header>
      <h2>
        Step {index} <span class="quiet">of {total}</span>
      </h2>
      <span class="quiet small-text clip">{facts?.filter(Boolean).join(" · ")}</span>
      <span class="space" />
      {canFork && step?.completed_at && (
        <button type="button" class="button small act" onClick={() => fork(target, index)}>
          Fork
        </button>
      )}
      {link(index - 1, "Previous step", "left")}
      {link(index + 1, "Next step", "right")}
      <a class="plain" href={sessionLink(data.id)} aria-label="Back to the conversation">
        <Icon name="close" />
      </a>
    </header>
  );
}

function Tabs({ tab, onChoose }: { tab: Tab; onChoose: (tab: Tab) => void }) {
  const names = Object.keys(TABS) as Tab[];
  const move = (event: KeyboardEvent): void => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    onChoose(names[(names.indexOf(tab) + by + names.length) % names.length]!);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
  };
  return (
    <div class="segments step-tabs" role="tablist" aria-label="Parts of the step" onKeyDown={move}>
      {names.map((name) => (
        <button
          key={name}
          type="button"
          role="tab"
          aria-selected={name === tab}
          aria-controls="step-body"
          tabIndex={name === tab ? 0 : -1}
          onClick={() => onChoose(name)}
        >
          {TABS[name]}
        </button>
      ))}
    </div>
  );
}

function DecisionView({ data, step }: { data: SessionData; step: Step }) {
  return (
    <>
      {step.outcome ? <Votes outcome={step.outcome} /> : <p>The step is open: no rule has judged it yet.</p>}
      <h3>Time and tokens</h3>
      <Facts data={data} step={step} />
    </>
  );
}

function Votes({ outcome }: { outcome: Outcome }) {
  const decided = outcome.evaluations.find(({ criterion }) => criterion === outcome.resolved_by);
  const [word, tone] = outcome.should_continue
    ? ["Continue", "t-r"]
    : outcome.stop_reason === null
      ? ["Pause", "t-w"]
      : ["Stop", "t-f"];
  const shown = word === "Stop" && outcome.stop_reason === "completed" ? "t-s" : tone;
  return (
    <>
      <p class="decision">
        <b class={shown}>{word}</b>
        {outcome.resolved_by && (
          <>
            , decided by <b>{outcome.resolved_by}</b>
          </>
        )}
        {decided?.reason && <>: {sentence(decided.reason)}</>}
      </p>
      <ul class="votes">
        {outcome.evaluations.map((each, index) => (
          <li key={index} class={each === decided ? "deciding" : ""}>
            <VoteSign vote={voteOf(each.decision)} />
            <div>
              <p>
                {each === decided ? <b>{each.criterion}</b> : each.criterion}
                <span class="hidden-text"> {voteWord(voteOf(each.decision))}</span>
              </p>
              <p class="quiet small-text">{each.reason}</p>
              <Numbers context={each.context ?? {}} />
            </div>
          </li>
        ))}
      </ul>
      {outcome.partial && <p>This was recorded without the agent, so its other rules were not asked.</p>}
    </>
  );
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function Numbers({ context }: { context: Record<string, unknown> }) {
  // Values with parts of their own are in the JSON of the step.
  const shown = Object.entries(context).filter(
    ([, value]) => value !== "" && (typeof value !== "object" || isShortList(value)),
  );
  if (shown.length === 0) return null;
  return (
    <dl class="vote-numbers">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{numberText(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function isShortList(value: unknown): boolean {
  return (
    Array.isArray(value) && value.length > 0 && value.length <= 5 && value.every((each) => typeof each !== "object")
  );
}

function numberText(value: unknown): string {
  if (typeof value === "number")
    return Number.isInteger(value) ? count(value) : String(Math.round(value * 1000) / 1000);
  return Array.isArray(value) ? value.join(", ") : String(value);
}

function tokensText({ usage }: Step, tokens: number): string {
  return usage.reported === false ? "not reported" : count(tokens);
}

function Facts({ data, step }: { data: SessionData; step: Step }) {
  const seconds = (from: string | null, to: string | null): string =>
    from && to ? duration((Date.parse(to) - Date.parse(from)) / 1000) : "";
  const execution = data.trace.value?.executions?.find(({ id }) => id === step.execution_id);
  const facts: [string, string][] = [
    ["Started", moment(step.started_at)],
    ["Model", seconds(step.started_at, step.answered_at)],
    ["Worked", duration(step.duration_ms / 1000)],
    ["Backoff before it", step.backoff_seconds ? duration(step.backoff_seconds) : ""],
    ["Waited for a person", step.waited_seconds ? duration(step.waited_seconds) : ""],
    ["Tokens read", tokensText(step, step.usage.input)],
    ["Tokens written", tokensText(step, step.usage.output)],
    ["Cost", step.usage.cost ? money(step.usage.cost) : ""],
    ["Finish reason", step.finish_reason ?? ""],
    ["Interrupted", step.interrupted ?? ""],
    ["Wrap-up after", step.wrap_up ?? ""],
    ["Run", execution && data.trace.value!.executions.length > 1 ? `step ${step.number} of “${execution.query}”` : ""],
  ];
  return (
    <dl class="facts-list">
      {facts
        .filter(([, value]) => value)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
