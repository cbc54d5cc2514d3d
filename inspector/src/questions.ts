/** The questions that wait for a person, over all sessions. */

import { computed, signal } from "@preact/signals";
import { get, type ApiError, type Question, type QuestionPage, type SessionSummary } from "./api";
import { resultOf } from "./decisions";
import { onListChange } from "./live";

const MOST = 50;
const MOST_SETTLED = 5;
const BEFORE_RETRY = 3000;

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

let retrying: ReturnType<typeof setTimeout> | undefined;
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
      const { status } = (questionsError.value = cause as ApiError);
      clearTimeout(retrying);
      if (status === 0 || status >= 500) retrying = setTimeout(() => void readQuestions(), BEFORE_RETRY);
    }
  }
  isReading = false;
}

/** Keep the questions current; return a function that ends that. */
export function watchQuestions(): () => void {
  const stopListening = onListChange((changed, deleted) => {
    // An empty change begins a connection: what happened before it is unknown.
    const isBeginning = changed.length + deleted.length === 0;
    if (isBeginning || deleted.length || changed.some(concernsQuestions)) void readQuestions();
  });
  void readQuestions();
  return stopListening;
}

function concernsQuestions({ agent_id, pending }: SessionSummary): boolean {
  return pending > 0 || Boolean(questions.peek()?.questions.some((question) => question.agent_id === agent_id));
}

function noteSettled(before: Question[], after: Question[]): void {
  const open = new Set(after.map(({ id }) => id));
  for (const question of before) {
    if (open.has(question.id)) continue;
    void resultOf(question.agent_id, question).then((result) => {
      const others = settled.peek().filter((each) => each.question.id !== question.id);
      settled.value = [{ question, result }, ...others].slice(0, MOST_SETTLED);
    });
  }
}
