/** The approvals inbox: the questions of all sessions, and the dialogs that answer them. */

import { canRun, type Target } from "./actions";
import { may, type Info, type Question } from "./api";
import { Age } from "./clock";
import { approve, deny, edit } from "./decisions";
import { count, counted, moment, shortId } from "./format";
import { reveal } from "whyloop-ui";
import { Icon } from "./icons";
import { questions, questionsError, readQuestions, settled } from "./questions";
import { sessionLink } from "./routes";
import { Trouble } from "./trouble";
import "./styles/approvals.css";

const LONGEST_SHOWN = 20_000;

/** The page with all questions, oldest first. */
export function Approvals({ info }: { info: Info | null }) {
  const page = questions.value;
  const problem = questionsError.value;
  const refusal = whyNot(info);
  return (
    <div class="page approvals">
      <header class="page-head">
        <h1>Approvals</h1>
        <span class="quiet small-text" role="status">{page && headline(page.questions.length, page.total)}</span>
      </header>
      {problem && <Trouble problem={problem} what="The questions" retry={readQuestions} />}
      {refusal && page?.total ? <p class="card notice">{refusal}</p> : null}
      {page?.questions.map((question) => <QuestionCard key={question.id} question={question} info={info} />)}
      {page?.total === 0 && !problem && <NothingWaits />}
      <JustSettled />
    </div>
  );
}

/** Say why the reader may not decide; null if they may. */
function whyNot(info: Info | null): string | null {
  return may(info, "decide") ? null : "Other people decide here: you may look, and not answer.";
}

function headline(shown: number, total: number): string {
  if (total === 0) return "Nothing waits for a person.";
  const rest = total > shown ? ` The ${count(shown)} oldest are shown.` : "";
  return `${counted(total, "question")}, oldest first.${rest}`;
}

function NothingWaits() {
  return (
    <section class="card empty">
      <Icon name="check" />
      <h2>Nothing waits for a person</h2>
      <p>
        A tool with <code>needs_approval=True</code> asks here before it runs. The session pauses until the question
        is decided; the number in the top bar stays current on every page.
      </p>
    </section>
  );
}

function SessionLink({ id }: { id: string }) {
  return <a class="link" href={sessionLink(id)} title={id}>{shortId(id)}</a>;
}

function QuestionCard({ question, info }: { question: Question; info: Info | null }) {
  const answer = answerOf(question, info);
  return (
    <article class="card question" data-row aria-label={summaryOf(question)}>
      <header>
        <Icon name="pause" class="t-w" />
        <h2 class="clip"><code>{question.tool ?? "The run itself"}</code></h2>
        <span class="space" />
        <span class="quiet small-text" title={moment(question.asked_at)}>waits <Age time={question.asked_at} /></span>
      </header>
      <p class="small-text origin">
        <SessionLink id={question.agent_id} />
        <span class="quiet">{reveal(question.title)}</span>
      </p>
      {question.question && question.tool === null && <p class="asked">{reveal(question.question)}</p>}
      {question.arguments && <Arguments value={question.arguments} />}
      {!whyNot(info) && (
        <footer>
          <button class="button primary" onClick={() => answer(approve)}>Approve</button>
          {question.can_edit && question.tool !== null && (
            <button class="button" onClick={() => answer(edit)}>Edit arguments</button>
          )}
          <button class="button" onClick={() => answer(deny)}>Deny</button>
        </footer>
      )}
    </article>
  );
}

/** Arguments as readable text. */
function Arguments({ value }: { value: Record<string, unknown> }) {
  if (Object.keys(value).length === 0) return <p class="quiet small-text none">No arguments</p>;
  const text = reveal(JSON.stringify(value, null, 2));
  return (
    <pre tabIndex={0} role="region" aria-label="Arguments">
      {text.slice(0, LONGEST_SHOWN)}
      {text.length > LONGEST_SHOWN && `\n… ${count(text.length - LONGEST_SHOWN)} more characters: see the session`}
    </pre>
  );
}

function JustSettled() {
  if (settled.value.length === 0) return null;
  return (
    <section class="card settled" aria-label="Decided just now">
      <header><h2>Decided just now</h2></header>
      {settled.value.map(({ question, result }) => (
        <p key={question.id}>
          <code class="clip">{summaryOf(question)}</code>
          <span>{result} <SessionLink id={question.agent_id} /></span>
        </p>
      ))}
    </section>
  );
}

/** The card of the list of sessions: the questions that wait longest. */
export function WaitingCard({ info }: { info: Info | null }) {
  const page = questions.value;
  const [oldest] = page?.questions ?? [];
  const shown = page?.questions.slice(0, 2) ?? [];
  return (
    <section class="card waiting-card" aria-labelledby="waiting-title">
      <header>
        <h2 id="waiting-title">Waiting for a person</h2>
        {page?.total ? <span class="count">{count(page.total)}</span> : null}
        <span class="space" />
        {oldest && <span class="quiet small-text">oldest <Age time={oldest.asked_at} /></span>}
      </header>
      {shown.map((question) => <ShortQuestion key={question.id} question={question} info={info} />)}
      {page && <p class="quiet small-text last">{waitingNote(page.total, shown.length, info)}</p>}
      {!page && questionsError.value && <p class="small-text last t-f">{questionsError.value.message}</p>}
    </section>
  );
}

function waitingNote(total: number, shown: number, info: Info | null) {
  if (total === 0) return <>Nothing. A tool with <code>needs_approval=True</code> asks here before it runs.</>;
  const refusal = whyNot(info);
  const all = total > shown && <a class="link" href="#/approvals">All {count(total)} questions</a>;
  if (refusal || all) return <>{all} {refusal}</>;
  return "Approve lets the call run once and resumes the session. Deny tells the model why.";
}

function ShortQuestion({ question, info }: { question: Question; info: Info | null }) {
  const answer = answerOf(question, info);
  return (
    <div class="short-question">
      <div class="clip">
        <code class="clip">{summaryOf(question)}</code>
        <div class="quiet small-text clip">
          <SessionLink id={question.agent_id} />
          , waits <Age time={question.asked_at} />. {reveal(question.title)}
        </div>
      </div>
      {!whyNot(info) && (
        <>
          <button
            class="button primary small" aria-label={`Approve ${summaryOf(question)}`}
            onClick={() => answer(approve)}
          >
            Approve
          </button>
          <button class="button small" aria-label={`Deny ${summaryOf(question)}`} onClick={() => answer(deny)}>
            Deny
          </button>
        </>
      )}
    </div>
  );
}

function summaryOf({ tool, args_summary, question }: Question): string {
  return reveal(tool === null ? question : `${tool}(${args_summary})`);
}

/** Return a function that opens a dialog for a question. */
function answerOf(question: Question, info: Info | null): (dialog: typeof approve) => void {
  const { agent_id, id } = question;
  const done = (): void => void readQuestions();
  const target: Target = { id: agent_id, canRun: canRun(info), user: info?.user ?? null, done };
  return (dialog) => {
    const others = questions.peek()?.questions.filter((each) => each.agent_id === agent_id && each.id !== id);
    dialog(target, question, others?.length);
  };
}
