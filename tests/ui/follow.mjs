// Follows sessions over a bad line to a server that fails now and then; prints what is shown.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const module = pathToFileURL(process.argv[2]);
const { followSession } = await import(module);
const { isRunning } = await import(new URL("index.js", module));
const settled = () => new Promise(setImmediate);

function dice(seed) {
  let state = seed + 1;
  return (sides) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
}

const ENDINGS = ["completed", "stopped", "failed", "paused"];
const isEnding = (told) => told?.event === "agent.status" && ENDINGS.includes(told.data.status);

const questions = (messages) => messages.filter(({ role }) => role === "user").map(({ content }) => content);

/** What is told and stored, in this order: `{told}` is an envelope, `{stored}` a history from then on. */
async function follow({ seed, happens }) {
  const roll = dice(seed);
  const told = [];
  const lines = [];
  let requests = [];
  let timers = [];
  let stored = [];
  let asked = [];
  let looks = 0;
  let known = 0;
  const unseen = [];
  const misled = [];

  class EventSource {
    readyState = 1;
    constructor(address) {
      this.heard = Number(new URL(address, "http://server").searchParams.get("after") ?? 0);
      this.last = this.heard;
      this.coming = told.map((_, index) => index + 1).filter((place) => this.isReplayed(place));
      lines.push(this);
    }
    /** Chunks are not kept. */
    isReplayed(place) {
      return place > this.last && told[place - 1].event !== "agent.stream.chunk";
    }
    deliver() {
      const place = this.coming.shift();
      if (place === undefined || this.readyState === 2) return false;
      this.last = place;
      this.onmessage({ data: JSON.stringify(told[place - 1]) });
      return true;
    }
    reconnect() {
      this.coming = told.map((_, index) => index + 1).filter((place) => this.isReplayed(place));
      this.onerror({});
      this.onopen({});
    }
    close() {
      this.readyState = 2;
    }
  }

  const page = () => ({ messages: stored, after: told.length ? String(told.length) : null });
  const view = followSession("/agents/sessions/1", () => {}, {
    EventSource,
    fetch: (address, { signal }) =>
      new Promise((resolve, reject) => {
        requests.push({ resolve, reject, early: roll(2) ? page() : null });
        signal.addEventListener("abort", () => reject(new Error("aborted")));
      }),
    setTimeout: (action) => timers.push(action),
  });

  function answer() {
    const request = requests.shift();
    const history = request?.early ?? page();
    request?.resolve({ ok: true, json: async () => history });
    return request !== undefined;
  }
  function ring() {
    const action = timers.shift();
    action?.();
    return action !== undefined;
  }
  const line = () => lines.at(-1);
  function happen() {
    const next = happens.shift();
    if (next?.stored) stored = next.stored;
    if (next?.told) {
      told.push(next.told);
      asked = questions(stored);
      for (const opened of lines) opened.coming.push(told.length);
    }
  }
  const troubles = [
    ...Array(6).fill(happen),
    ...Array(6).fill(() => line()?.deliver()),
    ...Array(3).fill(answer),
    ...Array(2).fill(ring),
    () => requests.shift()?.reject(new Error("no network")),
    () => roll(2) && line()?.readyState === 1 && line().reconnect(),
    () => {
      if (roll(4) || line()?.readyState !== 1) return;
      line().close();
      line().onerror({});
    },
  ];
  async function calm() {
    do await settled();
    while (line()?.deliver() || answer() || ring());
  }
  while (happens.length) {
    troubles[roll(troubles.length)]();
    if (roll(2)) await settled();
    if (roll(40)) continue;
    await calm();
    looks += 1;
    const seen = questions(view.messages);
    unseen.push(...asked.filter((question) => !seen.includes(question)));
    // A beginning and an end are stored before they are told: until then nobody can know.
    const last = told.at(-1);
    const runs = isRunning(stored);
    const isTold = stored.at(-1)?.metadata?.execution_id === last?.execution_id;
    if (!isTold || runs === isEnding(last)) continue;
    known += 1;
    if (isRunning(view.messages) !== runs) misled.push(last);
  }
  await calm();
  return { last: view.messages, unseen, misled, looks, known };
}

for await (const text of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await follow(JSON.parse(text))));
}
