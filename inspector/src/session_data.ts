/** The data of the session that is shown, kept current while it runs. */

import { batch, computed, signal } from "@preact/signals";
import { isRunning, viewOf, type UiMessage, type View } from "whyloop-ui";
import { followSession, type FollowedSession, type FollowOptions } from "whyloop-ui/session";
import {
  ApiError, get, may, own, readInfo, sessionPath, type Execution, type Limit, type NextAction, type SessionState, type Step, type Trace, type WhatIf,
} from "./api";
import { OlderMessages } from "./older_messages";
import { saved } from "./saved";
import { LiveSource } from "./live";

const PAGE = 500;
// While a run is in progress its trace is read at most this often.
const BETWEEN_READINGS = 300;

/** The limits of a what-if; null is no limit, absent is the recorded one. */
export type Limits = Partial<Record<Limit["option"], number | null>>;

/** The steps of an execution, by their numbers: a fork has steps with the ids of the session that it is from. */
export function stepsOf(execution: Execution, executions: readonly Execution[], steps: readonly Step[]): readonly Step[] {
  const next = executions[executions.indexOf(execution) + 1]?.first_step ?? Infinity;
  return steps.filter(({ index }) => index >= execution.first_step && index < next);
}

export class SessionData {
  readonly state = signal<SessionState | null>(null);
  /** The trace without its steps, which are in `steps`. */
  readonly trace = signal<Trace | null>(null);
  readonly steps = signal<readonly Step[]>([]);
  readonly view = signal<View>(viewOf());
  /** The messages before those of the view, as far as they were loaded. */
  readonly older: OlderMessages;
  /** The problem of the live connection; "" once it is solved. */
  readonly trouble = signal("");
  /** True from a request to stop until the run has ended. */
  readonly isStopping = signal(false);
  /** False for a reader of the conversation alone; then the trace has only what the list of sessions has. */
  readonly mayInspect = signal(true);
  /** Why the session cannot be shown; null if it can. */
  readonly error = signal<ApiError | null>(null);
  /** The step under the pointer, by its index: it is marked in the ledger, the timeline and the conversation. */
  readonly hot = signal<number | null>(null);
  readonly whatIf = signal<{ limits: Limits; answer: WhatIf } | null>(null);
  /** The steps of the latest execution, which the ledger shows. */
  readonly latest = computed(() => {
    const execution = this.trace.value?.executions?.at(-1);
    return execution ? stepsOf(execution, this.trace.value!.executions, this.steps.value) : [];
  });

  #followed: FollowedSession | null = null;
  #closing = new AbortController();
  #question: { limits: Limits; execution: string | undefined } | null = null;
  #isAsking = false;
  #isReading = false;
  #isStale = false;
  #latest: View | null = null;

  constructor(
    readonly id: string,
    readonly server = own,
    private readonly source: NonNullable<FollowOptions["EventSource"]> = LiveSource,
  ) {
    this.older = new OlderMessages(id, server);
  }

  /** Load the session and follow it. */
  open(): void {
    void this.read();
    if (saved) {
      this.view.value = viewOf(saved.messages.messages as UiMessage[]);
      return;
    }
    this.#followed = followSession(`${this.server.base}${sessionPath(this.id)}`, (view) => this.#receive(view), {
      headers: this.server.headers(),
      EventSource: this.source,
      fetch: this.older.watch((url, options) => fetch(url, options)),
      onError: ({ message }) => (this.trouble.value = message),
    });
  }

  /** Show the latest view, once for each picture that the browser draws: text streams faster than that. */
  #receive(view: View): void {
    const before = this.#latest ?? this.view.peek();
    const isAwaited = this.#latest !== null;
    this.#latest = view;
    if (marksOf(view) !== marksOf(before)) void this.read();
    if (isAwaited) return;
    const show = (): void => {
      const shown = this.#latest!;
      this.#latest = null;
      batch(() => {
        this.older.follow(this.view.peek(), shown);
        this.view.value = shown;
        this.trouble.value = "";
        if (!isRunning(shown)) this.isStopping.value = false;
      });
    };
    if (document.hidden) setTimeout(show, BETWEEN_READINGS);
    else requestAnimationFrame(show);
  }

  close(): void {
    this.#closing.abort();
    this.#followed?.close();
  }

  /** Show a question at once; return a function that removes it again. */
  add(content: string): () => void {
    return this.#followed?.add({ content }) ?? (() => {});
  }

  /** Read what is new in the trace; calls while it is being read are one more reading. */
  async read(): Promise<void> {
    this.#isStale = true;
    if (this.#isReading) return;
    this.#isReading = true;
    while (this.#isStale && !this.#closing.signal.aborted) {
      this.#isStale = false;
      await this.#readOnce();
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_READINGS));
    }
    this.#isReading = false;
  }

  async #readOnce(): Promise<void> {
    const { signal: aborted } = this.#closing;
    try {
      const state = withQuestions(await get<SessionState>(sessionPath(this.id), {}, aborted, this.server));
      // The last known step may have got its outcome since.
      let known = this.steps.peek().slice(0, -1);
      for (let after: number | null = known.length; after !== null; ) {
        const page = await this.#readTrace(state, after);
        known = [...known, ...page.steps];
        batch(() => {
          this.state.value = state;
          this.trace.value = { ...page, steps: [] };
          this.steps.value = known;
          this.error.value = null;
        });
        after = page.has_more ? page.next : null;
      }
    } catch (cause) {
      if (!aborted.aborted) this.error.value = cause as ApiError;
    }
  }

  /** Return a page of the trace; of one that the reader may not inspect, what its session says. */
  async #readTrace(state: SessionState, after: number): Promise<Trace> {
    const query = { brief: true, after, limit: PAGE };
    if (this.mayInspect.peek()) this.mayInspect.value = may(await readInfo(this.server), "inspect");
    try {
      if (this.mayInspect.peek())
        return await get<Trace>(`${sessionPath(this.id)}/trace`, query, this.#closing.signal, this.server);
    } catch (cause) {
      if ((cause as ApiError).type !== "missing_right") throw cause;
      this.mayInspect.value = false;
    }
    return traceOf(state);
  }

  /**
   * Ask how an execution would have ended under other limits; no limits end the what-if.
   *
   * One question is under way at a time, and after it the latest one: answers arrive while a slider moves.
   */
  async ask(limits: Limits, execution?: string): Promise<void> {
    this.#question = Object.keys(limits).length ? { limits, execution } : null;
    if (!this.#question) this.whatIf.value = null;
    if (!this.#question || this.#isAsking) return;
    this.#isAsking = true;
    try {
      for (let asked = null; this.#question && asked !== this.#question; ) {
        asked = this.#question;
        const given = Object.entries(asked.limits).map(([name, value]) => [name, value === null ? "none" : value]);
        const query = { ...Object.fromEntries(given), execution: asked.execution };
        const answer = await get<WhatIf>(`${sessionPath(this.id)}/what-if`, query, this.#closing.signal, this.server);
        if (this.#question && asked.execution === this.#question.execution) this.whatIf.value = { limits: asked.limits, answer };
      }
    } finally {
      this.#isAsking = false;
    }
  }
}

/** Return the state with null for what a question about the run itself has not: it is about no tool call. */
function withQuestions(state: SessionState): SessionState {
  const questions = state.pending_calls.map((question) =>
    question.tool_call_id === "" ? { ...question, tool: null, tool_call_id: null, arguments: null } : question,
  );
  return { ...state, pending_calls: questions };
}

/** Return a trace without steps, from what every reader of a session knows. */
function traceOf({ session }: SessionState): Trace {
  const { agent_id, agent, status, stop_reason, resolved_by, reason } = session;
  const resume: NextAction = { kind: "resume", text: "resume", code: null, question_id: null, grant: null };
  const isOpen = status === "in_progress" || stop_reason === "user_requested";
  return {
    agent_id, agent, status, stop_reason, resolved_by, reason,
    headline: reason ?? "", explanation: reason ?? "", next_actions: isOpen ? [resume] : [],
    executions: [], limits: [], rules: [], steps: [], open_step: null, step_count: session.step_count,
    has_more: false, next: null, usage: null, times: null,
  } as unknown as Trace;
}

/** Return what changes with everything that is recorded, and not with text that streams in. */
function marksOf(view: View): string {
  return view.runs.map(({ execution_id: id, seq, status }) => `${id} ${seq} ${status}`).join("\n");
}
