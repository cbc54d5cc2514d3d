/** Decisions of people on questions: the dialogs that ask for them, and what became of a question. */

import { computed, signal, type ReadonlySignal } from "@preact/signals";
import { send, type Target } from "./actions";
import { get, own, sessionPath } from "./api";
import type { ApiError, Call, PendingCall, Server, SessionState, Step, Trace } from "./api";
import { confirm, Overtaken } from "./dialogs";
import { age, counted, statusWord } from "./format";
import { parse } from "./json";
import { escapeInvisible, reveal } from "whyloop-ui";
import "./styles/decisions.css";

const NAME = "whyloop.name";
// A decision is in one of the last steps: its own, or the one after.
const LAST_STEPS = 5;

/** Let a pending call run; `others` are the questions of the session that stay open. */
export function approve(target: Target, question: PendingCall, others = 0): void {
  confirm({
    title: `Approve ${named(question)}`,
    effects: [
      question.tool === null ? reveal(question.question) : `${question.tool} runs once, with these arguments.`,
      afterwards(target, others),
    ],
    button: resumes(target, others) ? "Approve and resume" : "Approve",
    children: (
      <>
        {question.arguments && <pre class="arguments" tabIndex={0}>{reveal(JSON.stringify(question.arguments, null, 2))}</pre>}
        <PersonField target={target} />
      </>
    ),
    run: () => decide(target, question, "approve", {}),
  });
}

/** Do not let a pending call run; the model reads the reason. */
export function deny(target: Target, question: PendingCall, others = 0): void {
  const reason = signal("");
  confirm({
    title: `Deny ${named(question)}`,
    effects:
      question.tool === null
        ? ["The run ends here. Your reason is recorded as the reason of the end."]
        : [
            `${question.tool} does not run.`,
            "The model reads your reason as the result of the call.",
            afterwards(target, others),
          ],
    button: question.tool !== null && resumes(target, others) ? "Deny and resume" : "Deny",
    children: (
      <>
        <label class="field">
          Reason
          <textarea
            rows={3} maxLength={10_000} placeholder="For example: ask for the order number first"
            onInput={(event) => (reason.value = event.currentTarget.value)}
          />
        </label>
        <PersonField target={target} />
      </>
    ),
    run: () => decide(target, question, "deny", { reason: reason.value.trim() }),
  });
}

/** Let a pending call run with other arguments. */
export function edit(target: Target, question: PendingCall, others = 0): void {
  const text = signal(escapeInvisible(JSON.stringify(question.arguments ?? {}, null, 2)));
  const blocked = computed(() => problemOf(text.value));
  confirm({
    title: `Edit the arguments of ${named(question)}`,
    effects: [
      `${named(question)} runs once, with the arguments below instead of those that the model chose.`,
      "The change is recorded, and the model reads it.",
      afterwards(target, others),
    ],
    button: resumes(target, others) ? "Approve the change and resume" : "Approve the change",
    isWide: true,
    blocked,
    children: (
      <>
        <label class="field">
          Arguments, as JSON
          <textarea
            class="code-field" rows={Math.min(16, text.peek().split("\n").length + 1)} spellcheck={false}
            defaultValue={text.peek()} aria-describedby="arguments-problem"
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
        </label>
        <ArgumentsProblem problem={blocked} />
        <PersonField target={target} />
      </>
    ),
    run: () => decide(target, question, "approve", { arguments: parse(text.value) }),
  });
}

function named(question: PendingCall): string {
  return question.tool ?? "the run";
}

function resumes(target: Target, others: number): boolean {
  return target.canRun && others === 0;
}

function afterwards(target: Target, others: number): string {
  if (others) return `The session waits for ${counted(others, "other decision")} before it continues.`;
  return target.canRun ? "Then the run continues." : "Nothing runs from here, so the run continues elsewhere.";
}

/** What is wrong with the arguments, as they are typed. */
function ArgumentsProblem({ problem }: { problem: ReadonlySignal<string> }) {
  return (
    <p id="arguments-problem" class={problem.value ? "t-f small-text" : "quiet small-text"} role="status">
      {problem.value || "Valid JSON"}
    </p>
  );
}

function problemOf(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return "";
    return 'Arguments are a JSON object, such as {"amount": 20}.';
  } catch (cause) {
    return `This is not JSON: ${(cause as Error).message}`;
  }
}

/** The name under which the decision is recorded, where the server does not know it. */
function PersonField({ target }: { target: Target }) {
  if (target.user) return <p class="quiet small-text field">Recorded as the decision of {target.user}.</p>;
  return (
    <label class="field">
      Your name, recorded with the decision
      <input
        maxLength={200} autocomplete="name" defaultValue={localStorage.getItem(NAME) ?? ""}
        onInput={(event) => localStorage.setItem(NAME, event.currentTarget.value)}
      />
    </label>
  );
}

/** Record a decision; continue if it was the last one that the session waited for. */
async function decide(
  target: Target, question: PendingCall, verdict: "approve" | "deny", more: Record<string, unknown>,
): Promise<void> {
  const name = localStorage.getItem(NAME)?.trim();
  const by = name && !target.user ? { by: name } : {};
  try {
    const state = await send<SessionState>(target, verdict, { question_id: question.id, ...more, ...by });
    if (resumes(target, state.pending_calls.length)) await resume(target);
  } catch (cause) {
    const { status, type } = cause as ApiError;
    if (status !== 404 && !(status === 409 && type === "not_pending")) throw cause;
    const result = await resultOf(target.id, question, target.server);
    throw new Overtaken(`Nothing was changed: the question was decided before. ${result}`);
  }
}

async function resume(target: Target): Promise<void> {
  try {
    await send(target, "resume", {});
  } catch (cause) {
    // A runner that looks for decided sessions was faster, or another decision was.
    if ((cause as ApiError).status !== 409) throw cause;
  }
}

/** Say what became of a question that is not open any more. */
export async function resultOf(agentId: string, question: PendingCall, server: Server = own): Promise<string> {
  const path = sessionPath(agentId);
  try {
    const { session } = await get<SessionState>(path, {}, undefined, server);
    const query = { brief: true, after: Math.max(0, session.step_count - LAST_STEPS), limit: LAST_STEPS };
    const trace = await get<Trace>(`${path}/trace`, query, undefined, server);
    const steps: Step[] = trace.open_step ? [...trace.steps, trace.open_step] : trace.steps;
    const call = steps.flatMap(({ tool_calls }) => tool_calls).findLast(({ id }) => id === question.tool_call_id);
    return decisionOn(call) ?? `The session is now: ${statusWord(session.status)}.`;
  } catch (cause) {
    return (cause as ApiError).status === 404 ? "The session was deleted." : "";
  }
}

const VERDICTS: Record<string, string> = {
  approved: "Approved", denied: "Denied", edited: "Approved with other arguments",
};

function decisionOn(call: Call | undefined): string | null {
  const decision = call?.approvals?.at(-1);
  if (!decision) return null;
  const when = decision.at ? `, ${age(decision.at)} ago` : "";
  const why = decision.reason ? `: ${decision.reason}` : ".";
  return `${VERDICTS[decision.verdict] ?? decision.verdict} by ${decision.by}${when}${why}`;
}
