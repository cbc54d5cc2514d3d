// Follows sessions over a bad connection to a server that fails now and then; prints what is shown.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const module = pathToFileURL(process.argv[2]);
const { followSession } = await import(module);
const { isRunning, viewOf } = await import(new URL("index.js", module));
const { NUMBERED } = await import(new URL("events.js", module));
const settled = () => new Promise(setImmediate);

function dice(seed) {
  let state = seed + 1;
  return (sides) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
}

const ENDINGS = ["completed", "stopped", "failed", "paused"];
const isEnding = (envelope) => envelope?.event === "agent.status" && ENDINGS.includes(envelope.data.status);
const isNumbered = ({ event }) => NUMBERED.has(event);
const placeOf = ({ execution_id, seq }) => `${encodeURIComponent(execution_id)}:${seq}`;

const questions = (messages) => messages.filter(({ role }) => role === "user").map(({ content }) => content);

/**
 * What happens, in this order: `{sent}` is an envelope on its way to the connections; `{stored, recorded}`
 * is the history from then on, and the numbered envelopes that it has more than the one before.
 */
async function follow({ seed, happens }) {
  const roll = dice(seed);
  const sent = [];
  const recorded = [];
  const connections = [];
  let requests = [];
  let timers = [];
  let stored = [];
  let asked = [];
  let looks = 0;
  let known = 0;
  let filled = 0;
  const unseen = [];
  const misled = [];

  /** The recorded envelopes after a place: all that a server can send again. */
  function recordedAfter(place) {
    return recorded.slice(recorded.findIndex((envelope) => placeOf(envelope) === place) + 1);
  }

  class EventSource {
    readyState = 1;
    constructor(address) {
      this.place = new URL(address, "http://server").searchParams.get("after");
      this.coming = recordedAfter(this.place);
      connections.push(this);
    }
    deliver() {
      const envelope = this.coming.shift();
      if (envelope === undefined || this.readyState === 2) return false;
      this.place = placeOf(envelope);
      this.onmessage({ data: JSON.stringify(envelope) });
      return true;
    }
    /** Lose an envelope, if a later one shows that it is missing. */
    lose() {
      const [lost, ...later] = this.coming;
      if (!lost || lost.seq === 1 || !later.some((each) => isNumbered(each) && each.execution_id === lost.execution_id)) return;
      this.coming.shift();
    }
    reconnect() {
      this.coming = recordedAfter(this.place);
      this.onerror({});
      this.onopen({});
    }
    close() {
      this.readyState = 2;
    }
  }

  const history = () => ({ messages: stored, after: recorded.length ? placeOf(recorded.at(-1)) : null });
  function page(address) {
    const after = new URL(address, "http://server").searchParams.get("after");
    const events = recordedAfter(after);
    const some = events.slice(0, 1 + roll(3));
    filled += 1;
    return { events: some, next: some.length ? placeOf(some.at(-1)) : after, has_more: some.length < events.length };
  }
  const session = followSession("/agents/sessions/1", () => {}, {
    EventSource,
    fetch: (address, { signal }) =>
      new Promise((resolve, reject) => {
        const read = address.includes("/events?") ? () => page(address) : history;
        requests.push({ resolve, reject, read, early: roll(2) ? read() : null });
        signal?.addEventListener("abort", () => reject(new Error("aborted")));
      }),
    setTimeout: (action) => timers.push(action),
  });

  function answer() {
    const request = requests.shift();
    const found = request && (request.early ?? request.read());
    request?.resolve({ ok: true, json: async () => found });
    return request !== undefined;
  }
  function ring() {
    const action = timers.shift();
    action?.();
    return action !== undefined;
  }
  const connection = () => connections.at(-1);
  function happen() {
    const next = happens.shift();
    if (next?.stored) {
      stored = next.stored;
      recorded.push(...next.recorded);
    }
    if (next?.sent) {
      sent.push(next.sent);
      // A client loads the history when a run begins or ends.
      if (next.sent.event === "agent.status") asked = questions(stored);
      for (const opened of connections) opened.coming.push(next.sent);
    }
  }
  const troubles = [
    ...Array(6).fill(happen),
    ...Array(6).fill(() => connection()?.deliver()),
    ...Array(3).fill(answer),
    ...Array(2).fill(ring),
    () => requests.shift()?.reject(new Error("no network")),
    () => connection()?.lose(),
    () => roll(2) && connection()?.readyState === 1 && connection().reconnect(),
    () => {
      if (roll(4) || connection()?.readyState !== 1) return;
      connection().close();
      connection().onerror({});
    },
  ];
  async function calm() {
    do await settled();
    while (connection()?.deliver() || answer() || ring());
  }
  while (happens.length) {
    troubles[roll(troubles.length)]();
    if (roll(2)) await settled();
    if (roll(40)) continue;
    await calm();
    looks += 1;
    const seen = questions(session.view.messages);
    unseen.push(...asked.filter((question) => !seen.includes(question)));
    // A beginning and an end are stored before they are sent: until then a client cannot know.
    const last = sent.findLast(({ event }) => event === "agent.status");
    const runs = isRunning(viewOf(stored));
    const isSent = stored.at(-1)?.metadata?.execution_id === last?.execution_id;
    if (!isSent || runs === isEnding(last)) continue;
    known += 1;
    if (isRunning(session.view) !== runs) misled.push(last);
  }
  await calm();
  return { last: session.view.messages, unseen, misled, looks, known, filled };
}

for await (const text of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await follow(JSON.parse(text))));
}
