/**
 * A view while an envelope changes it.
 *
 * @typedef {import("./index.js").UiMessage} UiMessage
 * @typedef {import("./index.js").Run} Run
 * @typedef {import("./view.js").View} View
 */

import { metadataOf, statusId, uiMessage, withMetadata } from "./message.js";

/** The number of live messages above which those of earlier steps join the finished ones. */
const LONGEST_LIVE = 256;

export class Draft {
  /** @type {View} */ #before;
  /** @type {readonly Run[]} The other runs, which may have ended. */ #runs;
  /** @type {UiMessage[]} A copy from the first change on. */ #live;
  isChanged = false;
  /** The time of the envelope. */
  timestamp = "";

  /** @param {View} view @param {Run} run The run that the envelope belongs to. */
  constructor(view, run) {
    this.#before = view;
    this.#runs = view.runs;
    this.#live = /** @type {UiMessage[]} */ (view.live);
    this.run = run;
  }

  /** The view after the changes; the same view if there are none. */
  get view() {
    if (!this.isChanged) return this.#before;
    const isKnown = this.#runs.some((run) => this.#isOwn(run));
    const runs = isKnown
      ? this.#runs.map((run) => (this.#isOwn(run) ? this.run : run))
      : [...this.#runs, this.run];
    const view = this.#before.with({ live: this.#live, runs });
    return view.live.length > LONGEST_LIVE ? shortened(view) : view;
  }

  #isOwn({ execution_id }) {
    return execution_id === this.run.execution_id;
  }

  /** Change the state of the run. */
  note(entries) {
    this.run = { ...this.run, ...entries };
    this.isChanged = true;
  }

  /** Show the status of the run; without a text, remove it. */
  showStatus(statusType, text, details = {}) {
    this.note({ retry: details.retry ?? null });
    const { execution_id, step_number } = this.run;
    const id = statusId(execution_id);
    const metadata = { status_type: statusType, execution_id, step_number, ...details };
    if (text) this.put(uiMessage(id, "status", text, this.timestamp, metadata));
    else if (this.#live[this.#last()]?.id === id) this.drop(id);
  }

  get(id) {
    return this.#live.findLast((message) => message.id === id);
  }

  /** Replace the message with the same id, or add it at the end of the run, before its status. */
  put(message) {
    const live = this.#edit();
    const place = live.findLastIndex(({ id }) => id === message.id);
    if (place >= 0) {
      live[place] = message;
      return;
    }
    const last = this.#last();
    const isStatus = live[last]?.id === statusId(this.run.execution_id);
    live.splice(last < 0 ? live.length : last + (isStatus ? 0 : 1), 0, message);
  }

  drop(id) {
    const place = this.#live.findLastIndex((message) => message.id === id);
    if (place >= 0) this.#edit().splice(place, 1);
  }

  /** Return the position of the last message of the run, -1 if there is none. */
  #last() {
    return this.#live.findLastIndex((message) => this.#isOwn(metadataOf(message)));
  }

  #edit() {
    if (this.#live === this.#before.live) this.#live = this.#live.slice();
    this.isChanged = true;
    return this.#live;
  }

  /**
   * End the other runs of the session, which has one at a time: the ends of those in progress were missed.
   * Agents within a tool have sessions of their own.
   */
  endOthers() {
    const { agent_id, updated_at } = this.run;
    const isLost = (run) =>
      run.status === "in_progress" &&
      !this.#isOwn(run) &&
      run.agent_id === agent_id &&
      run.updated_at <= updated_at;
    const lost = this.#runs.filter(isLost);
    if (!lost.length) return;
    /** @type {Partial<Run>} */
    const over = { status: "lost", chunks: null, calls: [], question_id: null, retry: null, held: [], gap: null };
    this.#runs = this.#runs.map((run) => (lost.includes(run) ? { ...run, ...over } : run));
    const ids = new Set(lost.map((run) => run.execution_id));
    const statuses = new Set(lost.map((run) => statusId(run.execution_id)));
    this.#live = this.#edit().filter((message) => !statuses.has(message.id));
    this.#live.forEach((message, index) => {
      const { execution_id, streaming } = metadataOf(message);
      if (streaming && ids.has(execution_id)) this.#live[index] = withMetadata(message, { streaming: undefined });
    });
  }
}

/**
 * Return the view with fewer live messages, and without the runs that have none of them left. Many messages
 * are moved at a time, since that copies all finished ones.
 * @param {View} view
 */
function shortened(view) {
  const { finished, live, runs } = view;
  const canContinue = (run) => run.status === "in_progress" || run === runs.at(-1);
  const isFinished = (message) => {
    const { execution_id: executionId, step_number: step = 0 } = metadataOf(message);
    const run = runs.find((each) => each.execution_id === executionId);
    // The step before stays, since the next message of the run is put after it.
    return run === undefined || !canContinue(run) || step < run.step_number - 1;
  };
  const first = live.findIndex((message) => !isFinished(message));
  if (first < LONGEST_LIVE / 2) return view;
  const left = live.slice(first);
  const ids = new Set(left.map((message) => metadataOf(message).execution_id));
  const isLeft = (run) => canContinue(run) || ids.has(run.execution_id);
  return view.with({
    finished: finished.concat(live.slice(0, first)),
    live: left,
    runs: runs.filter(isLeft),
    finishedRuns: runs.filter((run) => !isLeft(run)),
  });
}
