/** The end of a conversation: why the run is where it is, and the button that continues it. */

import { isRunning } from "whyloop-ui";
import { canRun, mayTake, resume, resumeText, type Target } from "./actions";
import type { Info, NextAction, PendingCall, Status, Trace } from "./api";
import { decideOf } from "./blocks";
import { voteOf, type Vote } from "./format";
import { Icon, VoteSign } from "./icons";
import type { SessionData } from "./session_data";

interface EndProps {
  data: SessionData;
  info: Info | null;
  isAlone: boolean;
  isBeyond: boolean;
}

const WORDS: Partial<Record<Status, string>> = {
  completed: "Completed",
  stopped: "Stopped",
  failed: "Failed",
  paused: "Paused",
};
const TONES: Partial<Record<Status, string>> = { completed: "s", stopped: "f", failed: "f", paused: "w" };

export function EndCard({ data, info, isBeyond }: EndProps) {
  const trace = data.trace.value;
  const session = data.state.value?.session;
  if (!trace || !session) return null;
  if (trace.status === "in_progress") {
    // Without a runner it was cut off: its process died or was killed.
    const isLost = session.status === "in_progress" && !session.is_running;
    return isLost ? <LostCard data={data} info={info} trace={trace} /> : null;
  }
  const word = WORDS[trace.status];
  if (!word || isRunning(data.view.value)) return null;
  const vote = voteOfEnd(data);
  return (
    <div class={`end-card tone-${TONES[trace.status]} ${isBeyond ? "beyond" : ""}`}>
      {vote && <VoteSign vote={vote} />}
      <div>
        <p>
          <b>
            {word}
            {trace.resolved_by ? ` by ${trace.resolved_by}` : ""}
          </b>
        </p>
        {trace.reason && <p class="plain-text">{trace.reason}</p>}
        <Continue data={data} info={info} actions={trace.next_actions} />
      </div>
    </div>
  );
}

function LostCard({ data, info, trace }: { data: SessionData; info: Info | null; trace: Trace }) {
  return (
    <div class="end-card tone-f">
      <Icon name="dashed" />
      <div>
        <p>
          <b>Cut off: no process runs this session any more</b>
        </p>
        <p>The process that ran it has ended. What it had recorded is kept.</p>
        <Continue data={data} info={info} actions={trace.next_actions} />
      </div>
    </div>
  );
}

/** The button that continues; open questions have theirs beside the call. */
function Continue({ data, info, actions }: { data: SessionData; info: Info | null; actions: readonly NextAction[] }) {
  const action = actions.find(({ kind }) => kind === "grant" || kind === "resume");
  const questions = data.state.value?.pending_calls ?? [];
  if (questions.length || !action) return <OnlyQuestion data={data} info={info} questions={questions} />;
  const others = actions.filter(({ kind }) => kind === "change_policy" || kind === "change_rule");
  const target: Target = { id: data.id, canRun: true, server: data.server, done: () => void data.read() };
  return (
    <>
      {others.map(({ text, code }) => (
        <p key={text}>
          First {text}
          {code && (
            <>
              : <code>{code}</code>
            </>
          )}
        </p>
      ))}
      {mayTake(info, action) && (
        <button type="button" class="button small primary" onClick={() => resume(target, action)}>
          {resumeText(action)}
        </button>
      )}
    </>
  );
}

/** The button for the only question that the run waits for; of several, each has its own beside its call. */
function OnlyQuestion({
  data,
  info,
  questions,
}: {
  data: SessionData;
  info: Info | null;
  questions: readonly PendingCall[];
}) {
  const decide = decideOf(data, info);
  const [question] = questions;
  if (!question || questions.length > 1 || !decide) return null;
  const text = canRun(info) ? "Approve and resume" : "Approve";
  return (
    <button type="button" class="button small primary" onClick={() => decide.approve(question)}>
      {text}
    </button>
  );
}

function voteOfEnd(data: SessionData): Vote | null {
  const outcome = data.trace.value?.open_step?.outcome ?? data.latest.value.at(-1)?.outcome;
  const decided = outcome?.evaluations.find(({ criterion }) => criterion === data.trace.value?.resolved_by);
  if (data.trace.value?.status === "paused") return "F";
  return decided ? voteOf(decided.decision) : null;
}
