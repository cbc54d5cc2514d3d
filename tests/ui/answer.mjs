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

// Whatever is handed in is frozen: a function that changed it would throw.
const reduced = (messages, envelopes, inOrder = false) =>
  envelopes.reduce((latest, envelope) => frozen(ui.reduce(latest, envelope, { inOrder })), messages);

const own = {
  reduced,
  client: (messages, envelopes, canonical, inOrder) => {
    const streamed = reduced(messages, envelopes, inOrder);
    return {
      streamed,
      reconciled: ui.reconcile(streamed, canonical),
      grouped: ui.group(streamed),
      rendered: [...streamed, ...canonical].map((message) => ui.shouldRenderContent(message)),
      running: ui.isRunning(streamed),
      missing: ui.missing(streamed),
    };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const call = JSON.parse(line);
    answer = { result: (own[call.function] ?? ui[call.function])(...frozen(call.arguments)) };
  } catch (error) {
    answer = { error: error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
