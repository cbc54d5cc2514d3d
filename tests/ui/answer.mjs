// Answers calls of the functions of a module, one JSON document a line. A view stays here: the answer has its
// number, its messages and its runs, and a later call may pass it. A history may be passed in place of a view.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const ui = await import(pathToFileURL(process.argv[2]));
const views = [];

function frozen(value) {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}

const viewOf = (given) => (Array.isArray(given) ? frozen(ui.viewOf(given)) : views[given.view]);
const shown = ({ messages, runs }) => ({ messages, runs });
const stored = (view) => ({ view: views.push(frozen(view)) - 1, ...shown(view) });

// All arguments and results are frozen: a function that changed one would throw.
const reduced = (view, envelopes) =>
  envelopes.reduce((latest, envelope) => frozen(ui.reduce(latest, envelope)), view);

const own = {
  view: (given) => stored(viewOf(given)),
  /** The view with messages of the client's own. */
  added: (given, messages) => stored(messages.reduce(ui.addMessage, viewOf(given))),
  reduced: (given, envelopes) => stored(reduced(viewOf(given), envelopes)),
  reconciled: (given, history) => stored(ui.reconcile(viewOf(given), history)),
  /** The views after each of the envelopes. */
  screens: (given, envelopes) => {
    let view = viewOf(given);
    return envelopes.map((envelope) => stored((view = reduced(view, [envelope]))));
  },
  isRunning: (given) => ui.isRunning(viewOf(given)),
  /** A client after these envelopes, and after the history that follows. */
  client: (given, envelopes, history) => {
    const streamed = reduced(viewOf(given), envelopes);
    return { streamed: stored(streamed), reconciled: stored(ui.reconcile(streamed, history)) };
  },
  /** The results of a function for many lists of arguments. */
  each: (name, lists) => lists.map((given) => functions[name](...given)),
};
const functions = { ...ui, ...own };

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const call = JSON.parse(line);
    answer = { result: functions[call.function](...frozen(call.arguments)) };
  } catch (error) {
    answer = { error: error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
