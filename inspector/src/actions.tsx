/** What people do to a session: each asks for a confirmation that says what will happen. */

import { useRef } from "preact/hooks";
import { own, post, sessionPath, type NextAction, type PendingCall, type Server, type SessionState } from "./api";
import { confirm } from "./dialogs";
import { counted, duration, money } from "./format";

/** The session that an action is about. */
export interface Target {
  id: string;
  /** False if the server runs no agent: then decisions are recorded, and another process continues. */
  canRun: boolean;
  server?: Server;
  /** Called after the action, also if it failed: another client may have been faster. */
  done?: () => void;
}

async function send<T>(target: Target, path: string, body: unknown): Promise<T> {
  try {
    return await post<T>(`${sessionPath(target.id)}/${path}`, body, target.server ?? own);
  } finally {
    target.done?.();
  }
}

/** Record a decision; continue if it was the last one that the session waited for. */
async function decide(target: Target, verdict: "approve" | "deny", body: object): Promise<void> {
  const state = await send<SessionState>(target, verdict, body);
  if (target.canRun && state.pending_calls.length === 0) await send(target, "resume", {});
}

/** What happens after the decision; `others` are the questions that stay open. */
function afterwards(target: Target, others: number): string {
  if (others) return `The session waits for ${counted(others, "other decision")} before it continues.`;
  return target.canRun ? "Then the run continues." : "This server runs no agent, so the run continues elsewhere.";
}

function named(question: PendingCall): string {
  return question.name ?? "the run";
}

/** Let a pending call run. */
export function approve(target: Target, question: PendingCall, others = 0): void {
  const resumes = target.canRun && !others;
  confirm({
    title: `Approve ${named(question)}`,
    effects: [
      question.name ? `${question.name} runs with the arguments that the model chose.` : question.question,
      "The decision is recorded.",
      afterwards(target, others),
    ],
    button: resumes ? "Approve and resume" : "Approve",
    children: question.arguments && <pre class="arguments" tabIndex={0}>{JSON.stringify(question.arguments, null, 2)}</pre>,
    run: () => decide(target, "approve", { question_id: question.id }),
  });
}

/** Do not let a pending call run; the model reads the reason. */
export function deny(target: Target, question: PendingCall, others = 0): void {
  const field: { current: HTMLTextAreaElement | null } = { current: null };
  confirm({
    title: `Deny ${named(question)}`,
    effects: [
      question.name ? `${question.name} does not run.` : "The run ends here.",
      "The decision and its reason are recorded, and the model reads them.",
      afterwards(target, others),
    ],
    button: "Deny",
    children: (
      <label class="field">
        Reason
        <textarea ref={(element) => void (field.current = element)} rows={2} maxLength={10_000} />
      </label>
    ),
    run: () => decide(target, "deny", { question_id: question.id, reason: field.current?.value ?? "" }),
  });
}

/** Let a pending call run with other arguments. */
export function edit(target: Target, question: PendingCall, others = 0): void {
  const field: { current: HTMLTextAreaElement | null } = { current: null };
  const resumes = target.canRun && !others;
  confirm({
    title: `Edit the arguments of ${named(question)}`,
    effects: [
      `${named(question)} runs with the arguments below.`,
      "The change is recorded, and the model reads it.",
      afterwards(target, others),
    ],
    button: resumes ? "Approve the change and resume" : "Approve the change",
    children: <ArgumentsField value={question.arguments ?? {}} field={field} />,
    run: async () => {
      const changed = argumentsOf(field.current?.value ?? "");
      await decide(target, "approve", { question_id: question.id, arguments: changed });
    },
  });
}

function ArgumentsField({ value, field }: { value: object; field: { current: HTMLTextAreaElement | null } }) {
  const text = useRef(JSON.stringify(value, null, 2)).current;
  const rows = Math.min(16, Math.max(4, text.split("\n").length + 1));
  return (
    <label class="field">
      Arguments, as JSON
      <textarea class="code-field" spellcheck={false} rows={rows} ref={(element) => void (field.current = element)} defaultValue={text} />
    </label>
  );
}

function argumentsOf(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new Error(`This is not JSON: ${(cause as Error).message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error('Arguments are a JSON object, such as {"amount": 20}.');
  }
  return value;
}

/** The amounts of a grant: "10 steps", "10,000 tokens and 5 min". */
export function grantText(grant: NonNullable<NextAction["grant"]>): string {
  const parts = [
    grant.steps ? counted(grant.steps, "step") : "",
    grant.tokens ? counted(grant.tokens, "token") : "",
    grant.seconds ? duration(grant.seconds) : "",
    Number(grant.usd) ? money(grant.usd) : "",
  ].filter(Boolean);
  return parts.join(" and ");
}

/** The words of the button that resumes. */
export function resumeText(action: NextAction): string {
  const grant = action.grant && grantText(action.grant);
  return grant ? `Grant ${grant} and resume` : "Resume";
}

/** Continue a run that was paused, stopped or cut off. */
export function resume(target: Target, action: NextAction): void {
  const grant = action.grant && grantText(action.grant);
  confirm({
    title: resumeText(action),
    effects: [
      ...(grant ? [`The run gets ${grant} on top of its limits, and that is recorded.`] : []),
      "The run continues where it ended: the model is called, and tools may run.",
      "It ends again when a rule says so, or when you stop it.",
    ],
    button: resumeText(action),
    run: () => send(target, "resume", grant ? { grant: action.grant } : {}),
  });
}

/** End a run in progress. */
export function stop(target: Target, stopping?: () => void): void {
  confirm({
    title: "Stop the run",
    effects: [
      "The model call in progress is interrupted, and running tools get a moment to end.",
      "What was done so far is kept, and the run can be resumed.",
    ],
    button: "Stop",
    run: async () => {
      const { stopped } = await send<{ stopped: boolean }>(target, "stop", { reason: "Stopped in the inspector" });
      if (stopped) stopping?.();
    },
  });
}
