/** A tool call: its state at a glance, its arguments and its result on demand, and a person's decision about it. */

import { useState } from "preact/hooks";
import { argsSummary, reveal, type ToolCall, type UiMessage } from "whyloop-ui";
import { raisedBy, type Call, type CallStatus, type PendingCall, type Step } from "./api";
import { duration } from "./format";
import { CALL_ICONS, CALL_WORDS, Icon } from "./icons";
import { Code } from "./markdown";
import { Elapsed } from "./clock";
import "./styles/call.css";

// More than this is in the detail of the step.
const LONGEST = 20_000;

const TONES: Record<CallStatus, string> = {
  succeeded: "",
  failed: "t-f",
  denied: "t-f",
  started: "t-r",
  waiting: "t-w",
  not_completed: "t-a",
  not_started: "t-a",
};

/** Return the class of the colour of a state. */
export function callTone(status: CallStatus): string {
  return TONES[status];
}

export interface Decide {
  approve(question: PendingCall): void;
  deny(question: PendingCall): void;
  edit(question: PendingCall): void;
}

interface CallProps {
  call: ToolCall;
  status: CallStatus;
  result: UiMessage | null;
  recorded?: Call | undefined;
  step?: Step | undefined;
  /** The question that is open, and what may be done about it; without `decide` it is only shown. */
  question?: PendingCall | null;
  decide?: Decide | null;
}

/** A call in a conversation. */
export function CallCard({ call, status, result, recorded, step, question, decide }: CallProps) {
  const [isOpen, setOpen] = useState(false);
  const metadata = result?.metadata ?? {};
  const error = result?.role === "tool" ? metadata.tool_error : undefined;
  const summary = valuesOf(call);
  const hooks = [...new Set([...(call.changed_by ?? []), ...(metadata.changed_by ?? [])])];
  return (
    <div class={`call ${status}`}>
      <button type="button" class="call-line" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon
          name={CALL_ICONS[status]}
          class={`${TONES[status]} ${status === "started" ? "turning" : ""} ${status === "succeeded" ? "t-s" : ""}`}
        />
        <span class="call-name">{call.name}</span>
        <span class="call-summary">{summary}</span>
        <span class={`call-state ${TONES[status]}`}>
          {status === "waiting" ? "Waits for approval" : CALL_WORDS[status]}{" "}
          <CallTime status={status} result={result} recorded={recorded} />
        </span>
      </button>
      {error !== undefined && <p class={`call-note ${TONES[status]}`}>{raisedBy(step, call.id) ?? error}</p>}
      {decisions(recorded, step, error).map((text) => (
        <p key={text} class="call-note quiet">
          {text}
        </p>
      ))}
      {hooks.length > 0 && <p class="call-note quiet">Changed by {hooks.join(", ")}</p>}
      {question && <Waiting question={question} decide={decide ?? null} since={result?.timestamp ?? null} />}
      {isOpen && <CallContent call={call} result={result} />}
    </div>
  );
}

/** Return the values of the arguments: there is little room, and their names are one click away. */
function valuesOf({ args, args_summary: summary = "" }: ToolCall): string {
  if (args === undefined) return reveal(summary);
  if (typeof args === "string") return reveal(argsSummary(args, 80));
  const texts = Object.values(args).map((value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? "")));
  return reveal(texts.filter(Boolean).join(", ").slice(0, 200));
}

function CallTime({
  status,
  result,
  recorded,
}: {
  status: CallStatus;
  result: UiMessage | null;
  recorded?: Call | undefined;
}) {
  const milliseconds = result?.metadata?.tool_duration_ms;
  if (status === "started" && result) return <Elapsed since={recorded?.started_at ?? result.timestamp} />;
  const isMeasured = milliseconds !== undefined && (status === "succeeded" || status === "failed");
  return isMeasured ? <span class="quiet">{duration(milliseconds / 1000)}</span> : null;
}

/** The decisions of people that the error does not name already. */
function decisions(recorded: Call | undefined, step: Step | undefined, error: string | undefined): string[] {
  const made = recorded?.approvals ?? [];
  const waited = step && made.length === 1 && step.waited_seconds >= 1 ? ` after ${duration(step.waited_seconds)}` : "";
  return made.flatMap(({ verdict, by, reason }) => {
    if (verdict === "denied") return error ? [] : [`Denied by ${by}${reason ? `: ${reason}` : ""}`];
    return [verdict === "edited" ? `Approved with other arguments by ${by}${waited}` : `Approved by ${by}${waited}`];
  });
}

function CallContent({ call, result }: { call: ToolCall; result: UiMessage | null }) {
  const text = result?.role === "tool" && result.metadata?.tool_error === undefined ? result.content : null;
  return (
    <div class="call-content">
      {call.args !== undefined && <Code label="Arguments" language="arguments" text={argumentsText(call.args)} />}
      {call.args === undefined && <p class="quiet">The arguments are in the detail of the step.</p>}
      {text !== null && <Code label="Result" language="result" text={shortened(text)} />}
    </div>
  );
}

/** Return arguments as people read them. */
export function argumentsText(args: unknown): string {
  return reveal(typeof args === "string" ? args : (JSON.stringify(args, null, 2) ?? ""));
}

function shortened(text: string): string {
  return text.length > LONGEST
    ? `${text.slice(0, LONGEST)}\n… ${(text.length - LONGEST).toLocaleString("en-US")} characters more`
    : text;
}

/** A question that waits for a person, with the buttons that decide it. */
export function Waiting({
  question,
  decide,
  since,
}: {
  question: PendingCall;
  decide: Decide | null;
  since: string | null;
}) {
  return (
    <div class="waiting">
      <p class="quiet">
        {since && (
          <>
            Waits <Elapsed since={since} /> for a person.{" "}
          </>
        )}
        {reveal(question.question)}
      </p>
      {decide && (
        <div class="buttons">
          <button type="button" class="button small primary" onClick={() => decide.approve(question)}>
            Approve
          </button>
          <button type="button" class="button small" onClick={() => decide.deny(question)}>
            Deny
          </button>
          {question.tool && question.arguments && (
            <button type="button" class="button small bare" onClick={() => decide.edit(question)}>
              Edit
            </button>
          )}
        </div>
      )}
    </div>
  );
}
