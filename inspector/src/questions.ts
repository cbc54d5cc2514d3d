/** The questions that wait for a person, over all sessions, and the decisions on them. */

import { computed, effect, signal } from "@preact/signals";
import { ApiError, get, post, sessionPath } from "./api";
import type { Call, Info, Question, QuestionPage, SessionState, SessionSummary, Step, Trace } from "./api";
import { Overtaken } from "./dialogs";
import { age, statusWord } from "./format";
import { connection, onListChange } from "./live";

const MOST = 50;
const MOST_SETTLED = 5;
// A decision is in one of the last steps: its own, or the one after.
const LAST_STEPS = 5;

/** A question that was open a moment ago, and what became of it. */
export interface Settled {
  question: Question;
  result: string;
}

/** The oldest questions; null before they are known. */
export const questions = signal<QuestionPage | null>(null);
export const questionsError = signal<ApiError | null>(null);
export const settled = signal<readonly Settled[]>([]);
/** How many questions wait; the top bar shows it. */
export const waiting = computed(() => questions.value?.total ?? 0);

let isReading = false;
let isStale = false;

/** Read the questions; calls while they are being read are one more reading. */
export async function readQuestions(): Promise<void> {
  isStale = true;
  if (isReading) return;
  isReading = true;
  while (isStale) {
    isStale = false;
    try {
      const before = questions.peek();
      const page = await get<QuestionPage>("questions", { limit: MOST });
      questions.value = page;
      questionsError.value = null;
      if (before) noteSettled(before.questions, page.questions);
    } catch (cause) {
      questionsError.value = cause as ApiError;
    }
  }
  isReading = false;
}

/** Keep the questions current; return a function that ends that. */
export function watchQuestions(): () => void {
  const stopListening = onListChange((changed, deleted) => {
    if (deleted.length || changed.some(concernsQuestions)) void readQuestions();
  });
  // The first connection too: what changed before it was made is unknown.
  const stopWatching = effect(() => {
    if (connection.value.state === "live") void readQuestions();
  });
  void readQuestions();
  return () => {
    stopListening();
    stopWatching();
  };
}

function concernsQuestions({ agent_id, pending }: SessionSummary): boolean {
  return pending > 0 || Boolean(questions.peek()?.questions.some((question) => question.agent_id === agent_id));
}

function noteSettled(before: Question[], after: Question[]): void {
  const open = new Set(after.map(({ id }) => id));
  for (const question of before) {
    if (open.has(question.id)) continue;
    void resultOf(question).then((result) => {
      const others = settled.peek().filter((each) => each.question.id !== question.id);
      settled.value = [{ question, result }, ...others].slice(0, MOST_SETTLED);
    });
  }
}

/** Say what became of a question that is not open any more. */
async function resultOf(question: Question): Promise<string> {
  const path = sessionPath(question.agent_id);
  try {
    const { session } = await get<SessionState>(path);
    const after = Math.max(0, session.step_count - LAST_STEPS);
    const trace = await get<Trace>(`${path}/trace`, { brief: true, after, limit: LAST_STEPS + 1 });
    const steps: Step[] = trace.open_step ? [...trace.steps, trace.open_step] : trace.steps;
    const call = steps.flatMap(({ tool_calls }) => tool_calls).findLast(({ id }) => id === question.call_id);
    return decisionOn(call) ?? `It is not open any more. The session is now: ${statusWord(session.status)}.`;
  } catch (cause) {
    if ((cause as ApiError).status === 404) return "The session was deleted.";
    return "It is not open any more.";
  }
}

const VERBS: Record<string, string> = { approved: "Approved", denied: "Denied", edited: "Approved with other arguments" };

function decisionOn(call: Call | undefined): string | null {
  const decision = call?.approvals?.at(-1);
  if (!decision) return null;
  const when = decision.at ? `, ${age(decision.at)} ago` : "";
  const why = decision.reason ? `: ${decision.reason}` : ".";
  return `${VERBS[decision.verdict] ?? decision.verdict} by ${decision.by}${when}${why}`;
}

/** Send a decision, and let the session continue when it was the last open question. */
export async function decide(
  question: Question, verdict: "approve" | "deny", more: Record<string, unknown>, info: Info | null,
): Promise<void> {
  const path = sessionPath(question.agent_id);
  try {
    const state = await post<SessionState>(`${path}/${verdict}`, { question_id: question.id, ...more });
    if (info?.can_run && state.pending_calls.length === 0) await resume(path);
  } catch (cause) {
    const { status, type } = cause as ApiError;
    if (status === 404 || (status === 409 && type === "not_pending")) {
      throw new Overtaken(`Nothing was changed: the question was decided before. ${await resultOf(question)}`);
    }
    throw cause;
  } finally {
    void readQuestions();
  }
}

async function resume(path: string): Promise<void> {
  try {
    await post(`${path}/resume`, {});
  } catch (cause) {
    // A runner that looks for decided sessions was faster, or another decision was.
    if ((cause as ApiError).status !== 409) throw cause;
  }
}
