// Reads streams as `useChat` does: the transport decodes them, the reader makes a message of each.
// In: [[stream, …], …], the streams of each message in order. Out: [[{message, errors}, …], …].
import { text } from "node:stream/consumers";

const { DefaultChatTransport, readUIMessageStream } = await import(process.argv[2]);
const headers = JSON.parse(process.argv[3]);

async function read(body, message) {
  const errors = [];
  const transport = new DefaultChatTransport({ fetch: async () => new Response(body, { headers }) });
  const stream = await transport.sendMessages({
    trigger: "submit-message",
    chatId: "chat",
    messageId: undefined,
    messages: [],
    abortSignal: undefined,
  });
  const onError = (error) => errors.push(error.message);
  for await (const latest of readUIMessageStream({ stream, message, onError })) message = latest;
  return { message, errors };
}

const answers = [];
for (const bodies of JSON.parse(await text(process.stdin))) {
  const seen = [];
  for (const body of bodies) {
    const before = seen.at(-1)?.message;
    seen.push(await read(body, before && structuredClone(before)));
  }
  answers.push(seen);
}
console.log(JSON.stringify(answers));
