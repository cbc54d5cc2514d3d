// Answers calls of the functions of a module, one JSON document a line.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const ui = await import(pathToFileURL(process.argv[2]));

function frozen(value) {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}

// All arguments and results are frozen: a function that changed one would throw.
const reduced = (messages, envelopes) =>
  envelopes.reduce((latest, envelope) => frozen(ui.reduce(latest, envelope)), messages);

const own = {
  reduced,
  /** The messages after each of the envelopes. */
  screens: (messages, envelopes) => envelopes.map((envelope) => (messages = reduced(messages, [envelope]))),
  /** The ids of the statuses that show a run in progress. */
  running: (messages) => messages.filter((message) => ui.isRunning([message])).map(({ id }) => id),
  /** What a client knows after these envelopes, and after the history that follows. */
  client: (messages, envelopes, canonical) => {
    const streamed = reduced(messages, envelopes);
    return {
      streamed,
      reconciled: frozen(ui.reconcile(streamed, canonical)),
      running: ui.isRunning(streamed),
      missing: ui.missing(streamed),
    };
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
