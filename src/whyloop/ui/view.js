/**
 * The view of a session: its messages and its latest runs.
 *
 * A view never changes. Each function returns a new one, which shares everything with the view before that
 * is still the same. Only the messages of the latest steps can change, so a view holds them in a short list
 * of their own: the work for an envelope does not depend on the length of the history.
 *
 * @typedef {import("./index.js").UiMessage} UiMessage
 * @typedef {import("./index.js").Run} Run
 */

export class View {
  #messages;
  #finishedRuns;

  /**
   * @param {readonly UiMessage[]} finished
   * @param {readonly UiMessage[]} live
   * @param {readonly Run[]} runs
   * @param {ReadonlySet<string>} finishedRuns The executions whose messages are all in `finished`.
   */
  constructor(finished, live, runs, finishedRuns) {
    this.finished = finished;
    this.live = live;
    this.runs = runs;
    this.#finishedRuns = finishedRuns;
  }

  get messages() {
    return (this.#messages ??= this.finished.concat(this.live));
  }

  /** Return the view with other messages or runs, and with more runs that are finished. */
  with({ finished = this.finished, live = this.live, runs = this.runs, finishedRuns = [] }) {
    const ids = finishedRuns.map((run) => run.execution_id);
    const all = ids.length ? new Set([...this.#finishedRuns, ...ids]) : this.#finishedRuns;
    return new View(finished, live, runs, all);
  }

  /** Return whether a run is over because another one follows it. */
  isSuperseded(executionId) {
    return this.#finishedRuns.has(executionId);
  }
}

/** @returns {Run} */
export function newRun(executionId) {
  return {
    execution_id: executionId,
    agent_id: null,
    status: "pending",
    seq: 0,
    step_number: 1,
    chunks: null,
    calls: [],
    question_id: null,
    retry: null,
    continuation: null,
    reason: null,
    evaluations: null,
    held: [],
    gap: null,
    updated_at: "",
  };
}

/**
 * Return whether a run is in progress, as far as the history and the envelopes show.
 * @type {typeof import("./index.js").isRunning}
 */
export function isRunning(view) {
  return view.runs.some((run) => run.status === "in_progress");
}

// Messages of the client's own

/**
 * Return the view with a message of the client's own at its end.
 * @param {View} view
 * @param {UiMessage} message
 */
export function addMessage(view, message) {
  return view.with({ live: [...view.live, message] });
}

/**
 * Return the view without a message that was added; the same view if the message is already gone.
 * @param {View} view
 * @param {UiMessage} message
 */
export function removeMessage(view, message) {
  const list = ["live", "finished"].find((name) => view[name].includes(message));
  return list ? view.with({ [list]: view[list].filter((each) => each !== message) }) : view;
}
