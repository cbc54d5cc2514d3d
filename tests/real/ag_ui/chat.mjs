// Has a conversation with a server, with the client of AG-UI.
// In: the package, the address of the server, what to do. Out: the messages, questions and errors after each.
const { HttpAgent } = await import(process.argv[2]);
const address = process.argv[3];

const ownFetch = globalThis.fetch;
let onResponse = () => {};
globalThis.fetch = async (...request) => {
  const response = await ownFetch(...request);
  onResponse();
  return response;
};

const newAgent = () => new HttpAgent({ url: `${address}/ag-ui`, threadId: "chat" });
const questionsOf = (agent) => agent.pendingInterrupts ?? [];
let agent = newAgent();
let number = 0;

async function run(parameters = {}, subscriber = {}) {
  const errors = [];
  try {
    await agent.runAgent(parameters, { ...subscriber, onRunErrorEvent: ({ event }) => void errors.push(event.message) });
  } catch (error) {
    errors.push(error.message);
  }
  return errors;
}

const add = (text) => agent.addMessage({ id: `own-${(number += 1)}`, role: "user", content: text });

const found = [];
for (const [what, ...rest] of JSON.parse(process.argv[4])) {
  let errors = [];
  if (what === "send") {
    add(rest[0]);
    errors = await run();
  } else if (what === "decide") {
    const resume = questionsOf(agent).map(({ id }, index) => ({
      interruptId: id,
      status: "resolved",
      payload: { approved: rest[index], reason: "because" },
    }));
    errors = await run({ resume });
  } else if (what === "reload") {
    agent = newAgent();
    errors = await run();
  } else if (what === "leave after") {
    add(rest[0]);
    const onTextMessageContentEvent = ({ textMessageBuffer, event }) => {
      if ((textMessageBuffer + event.delta).includes(rest[1])) agent.abortRun();
    };
    await run({}, { onTextMessageContentEvent });
  } else if (what === "return") {
    agent = newAgent();
    onResponse = () => {
      onResponse = () => {};
      ownFetch(`${address}/go`);
    };
    errors = await run();
  }
  found.push({ messages: structuredClone(agent.messages), questions: questionsOf(agent).length, errors });
}
console.log(JSON.stringify(found));
