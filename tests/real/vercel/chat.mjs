// Has a conversation with a server, as `useChat` does: this is its chat, without React.
// In: the package, the address of the server, what to do. Out: the messages and errors after each.
const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = await import(
  process.argv[2]
);
const [address, version] = [process.argv[3], process.argv[2].split("-")[1]];
const query = `?sdk_version=${version}`;

class State {
  status = "ready";
  error = undefined;
  constructor(messages, onChange) {
    this.messages = messages;
    this.onChange = onChange;
  }
  pushMessage = (message) => this.onChange((this.messages = [...this.messages, message]));
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => this.onChange((this.messages = this.messages.with(index, message)));
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor(messages = [], onChange = () => {}, onReconnect = () => {}) {
    const errors = [];
    super({
      id: "chat",
      state: new State(messages, onChange),
      transport: new DefaultChatTransport({
        api: `${address}/vercel`,
        prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
          api: `${address}/vercel${query}`,
          body: { id, messages, trigger, messageId },
        }),
        prepareReconnectToStreamRequest: ({ id }) => ({ api: `${address}/vercel/${id}/stream${query}` }),
        fetch: async (url, options) => {
          const response = await fetch(url, options);
          if (options.method === "GET") onReconnect();
          return response;
        },
      }),
      onError: (error) => errors.push(error.message),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    this.errors = errors;
  }
}

const settled = (chat) =>
  new Promise((resolve) => {
    const look = () =>
      ["ready", "error"].includes(chat.status) ? resolve() : setTimeout(look, 5);
    setTimeout(look, 5);
  });
const history = async () => (await (await fetch(`${address}/vercel/chat/messages${query}`)).json()).messages;
const textOf = (messages) => messages.at(-1).parts.map((part) => part.text ?? "").join("");

const found = [];
const note = (chat) => found.push({ messages: chat.messages, errors: chat.errors });
let chat = new Chat();
for (const [what, ...rest] of JSON.parse(process.argv[4])) {
  if (what === "send") {
    await chat.sendMessage({ text: rest[0] });
  } else if (what === "decide") {
    const waiting = chat.lastMessage.parts.filter((part) => part.state === "approval-requested");
    for (const [index, part] of waiting.entries()) {
      await chat.addToolApprovalResponse({ id: part.approval.id, approved: rest[index], reason: "because" });
    }
    await settled(chat);
  } else if (what === "reload") {
    chat = new Chat(await history());
    await chat.resumeStream();
  } else if (what === "leave after") {
    chat = new Chat(chat.messages, (messages) => {
      if (messages.at(-1).role === "assistant" && textOf(messages).includes(rest[1])) chat.stop();
    });
    await chat.sendMessage({ text: rest[0] });
  } else if (what === "return") {
    chat = new Chat(await history(), undefined, () => fetch(`${address}/go`));
    await chat.resumeStream();
  }
  note(chat);
}
console.log(JSON.stringify(found));
