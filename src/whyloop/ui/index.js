/**
 * What a chat UI shows of a whyloop session: envelopes as they arrive, reconciled with the history.
 *
 * The Python module `whyloop.wire.ui` holds the same functions; both pass the same vectors. All text
 * is data here: nothing is parsed, evaluated or turned into markup.
 *
 * @typedef {import("./index.d.ts").UiMessage} UiMessage
 * @typedef {import("./index.d.ts").Envelope} Envelope
 * @typedef {import("./index.d.ts").Metadata} Metadata
 * @typedef {import("./index.d.ts").ToolCall} ToolCall
 * @typedef {import("./index.d.ts").Continuation} Continuation
 */

const THINKING = "Thinking…";
const WAITING = "Waiting for a person";
/** What stands for text that was not heard. */
const GAP = "…";

/** So many envelopes wait for one that is missing; then it goes on without. */
const WINDOW = 8;
const SHOWN_ARGUMENTS = 3;
const ENDED = ["completed", "stopped", "failed"];

// Both implementations mean the same characters by white space.
const SPACE = "[\\s\\x1c-\\x1f\\x85\\ufeff]";
const BLANK = new RegExp(`^${SPACE}*$`);
// A JSON object or a list of them, whole or cut off, also in a fence or after a tag of a tool call.
const JSON_TEXT = new RegExp(
  `^${SPACE}*(?:\`\`\`[A-Za-z]*${SPACE}*|<[A-Za-z_|]+>${SPACE}*)?` +
    `(?:\\[${SPACE}*)*(?:\\{${SPACE}*(?:["'}]|[A-Za-z0-9_]+${SPACE}*:|$)|\\[${SPACE}*[\\]"])`,
);

// Ids that both sides can work out

const assistantId = (executionId, step) => `${executionId}:${step}:assistant`;
const toolId = (executionId, step, callId) => `${executionId}:${step}:tool:${callId}`;
const errorId = (executionId, step) => `${executionId}:${step}:error`;
const statusId = (executionId) => `${executionId}:status`;

// Words

/**
 * What to show for the data of an `agent.status`, or for a message's `continuation`.
 * @type {typeof import("./index.d.ts").statusText}
 */
export function statusText(status) {
  const { status: name, stop_reason: reason, error_message: error, should_continue: goesOn } = status;
  if (name === "in_progress" || goesOn === true) return THINKING;
  if (isText(error) && error) return error;
  if (isText(reason) && reason && reason !== "completed") return `Agent stopped: ${reason}`;
  if (name === "paused" || (goesOn === false && (reason === undefined || reason === null))) return WAITING;
  return "";
}

/** "Retrying (2/3)" for a step that is tried again, else nothing. */
function retryWords(retry) {
  const [attempt, most] = isObject(retry) ? [whole(retry.attempt), whole(retry.max)] : [0, 0];
  return attempt && most !== null ? `Retrying (${attempt}/${most})` : "";
}

/**
 * The first three arguments, such as `query: 'dbplus', types: ["program"]`, each value cut short.
 * @type {typeof import("./index.d.ts").argsSummary}
 */
export function argsSummary(args, longest = 30) {
  if (isText(args)) return cut(args, longest);
  return Object.entries(args)
    .slice(0, SHOWN_ARGUMENTS)
    .map(([key, value]) => `${cut(key, longest)}: ${shortValue(value, longest)}`)
    .join(", ");
}

function shortValue(value, longest) {
  if (isText(value)) return `'${cut(value, longest)}'`;
  return cut(asJson(value, longest), longest);
}

/** The beginning of a value as JSON: numbers as 1e21, and no escapes for lone surrogates. */
function asJson(value, longest) {
  const json = JSON.stringify(value) ?? String(value);
  // Six letters are one character at most, so no more of a long value is looked at than that.
  return json
    .slice(0, longest * 6)
    .replace(/"(?:[^"\\]|\\.)*"?|e\+/g, (found) => (found === "e+" ? "e" : withoutHalves(found)));
}

function withoutHalves(quoted) {
  return quoted.replace(/\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)/g, (escape) =>
    escape.length === 6 ? "\ufffd" : escape,
  );
}

/** The beginning of a text, in characters rather than in halves of them. */
function cut(text, longest) {
  // A character has two halves at most, so no more of a long text is looked at than that.
  return wellFormed(Array.from(text.slice(0, longest * 2)).slice(0, longest).join(""));
}

/** The text with lone surrogates replaced, as no UTF-8 encoder takes them. */
function wellFormed(text) {
  return text.replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, (found) =>
    found.length === 2 ? found : "\ufffd",
  );
}

// How messages are shown

/**
 * True if the text of a message is to be shown as text: never that of a tool, which is shown under its
 * call; beside tool calls only language.
 * @type {typeof import("./index.d.ts").shouldRenderContent}
 */
export function shouldRenderContent(message) {
  if (message.role === "tool" || isBlank(message.content)) return false;
  const calls = metadataOf(message).tool_calls;
  if (message.role === "assistant" && calls && calls.length) return !JSON_TEXT.test(message.content);
  return true;
}

/**
 * True for a status that goes when the history comes; an error stays.
 * @type {typeof import("./index.d.ts").isEphemeral}
 */
export function isEphemeral(message) {
  return message.role === "status" && metadataOf(message).status_type !== "error";
}

/**
 * What to draw, top to bottom: `{message, calls}`, each of the calls `{call, result}`.
 * @type {typeof import("./index.d.ts").group}
 */
export function group(messages) {
  const drawn = [];
  for (const message of messages) {
    const slot = slotOf(drawn, message);
    if (slot) {
      slot.result = message;
      continue;
    }
    const calls = (message.role === "assistant" && metadataOf(message).tool_calls) || [];
    drawn.push({ message, calls: calls.map((call) => ({ call, result: null })) });
  }
  return drawn;
}

/** The latest call that this message is the result of. */
function slotOf(drawn, message) {
  const callId = metadataOf(message).tool_call_id ?? null;
  if (callId === null || (message.role !== "tool" && message.role !== "status")) return null;
  for (let index = drawn.length - 1; index >= 0; index -= 1) {
    const slot = drawn[index].calls.find(({ call, result }) => call.id === callId && result === null);
    if (slot) return slot;
  }
  return null;
}

// The history

/**
 * The history as it is stored, in the place of what was streamed. Two things of what was streamed stay:
 * an error of the client's own, and at the end what a user has sent that is not stored yet.
 * @type {typeof import("./index.d.ts").reconcile}
 */
export function reconcile(streamed, canonical) {
  const places = new Map();
  const byCall = new Map();
  canonical.forEach((message, index) => {
    places.set(message.id, index);
    const callId = metadataOf(message).tool_call_id ?? null;
    if (callId !== null) byCall.set(callId, index);
  });
  const kept = new Map();
  let place = canonical.length - 1;
  for (const message of streamed) {
    const known = places.get(message.id) ?? byCall.get(metadataOf(message).tool_call_id);
    if (known !== undefined) place = known;
    else if (isStatus(message, "error") && (metadataOf(message).execution_id ?? null) === null) {
      kept.set(place, [...(kept.get(place) ?? []), message]);
    }
  }
  const merged = canonical.length ? [] : [...(kept.get(-1) ?? [])];
  canonical.forEach((message, index) => merged.push(message, ...(kept.get(index) ?? [])));
  return [...merged, ...notStoredYet(streamed, canonical)];
}

/** What the user has sent beyond what the history has, with no answer to it so far. */
function notStoredYet(streamed, canonical) {
  let answered = streamed.length - 1;
  while (answered >= 0 && !["assistant", "tool"].includes(streamed[answered].role)) answered -= 1;
  const isQuestion = (message) => message.role === "user";
  const more = streamed.filter(isQuestion).length - canonical.filter(isQuestion).length;
  const sent = streamed.slice(answered + 1).filter(isQuestion);
  return more > 0 ? sent.slice(Math.max(0, sent.length - more)) : [];
}

// Envelopes

/**
 * The messages after an envelope, in a new list; the same list where it changes nothing.
 *
 * An envelope that was heard already, or that says nothing of use, is ignored. One that comes too early
 * is held until those before it are there, or too many wait, or the execution has ended. A run that is
 * resumed may be told by somebody who counts from one again. One that was under way when the next of its
 * session begins is over, and nothing more is heard of it.
 *
 * `inOrder` is for a line on which nothing comes late, such as a server's replay: what is missing before
 * an envelope is not waited for.
 * @type {typeof import("./index.d.ts").reduce}
 */
export function reduce(messages, envelope, options) {
  if (!isReadable(envelope)) return messages;
  const live = new Live(messages, envelope.execution_id);
  const { seq } = envelope;
  if (live.isOver) return messages;
  if (!live.isKnown) {
    if (!isNews(messages, envelope)) return messages;
    live.begin(envelope);
    apply(live, envelope);
    return live.messages;
  }
  if (seq <= live.known.seq && isRestart(live, envelope)) {
    live.hear(envelope);
    live.note({ held: undefined });
    apply(live, envelope);
    return live.messages;
  }
  const inOrder = options?.inOrder === true;
  const held = live.known.held ?? [];
  const isHeld = held.some((early) => early.seq === seq);
  if (seq <= live.known.seq || (isHeld && !inOrder)) return messages;
  const waiting = isHeld ? [...held] : [...held, envelope].sort((one, other) => one.seq - other.seq);
  const atOnce = waiting.some(isEnding);
  const due = inOrder ? seq : 0;
  while (
    waiting.length &&
    (waiting[0].seq <= Math.max(due, live.known.seq + 1) || waiting.length > WINDOW || atOnce)
  ) {
    const following = waiting.shift();
    live.hear(following);
    apply(live, following);
  }
  live.note({ held: waiting.length ? waiting : undefined });
  return live.messages;
}

/**
 * True while an execution is under way, as far as its envelopes and the history tell.
 * @type {typeof import("./index.d.ts").isRunning}
 */
export function isRunning(messages) {
  return messages.some(isUnderWay);
}

/** A message of an execution that is over; its status has heard all that it will. */
function asEnded(message) {
  if (!isUnderWay(message)) return withMetadata(message, { streaming: undefined });
  const over = withMetadata(message, { status_type: "info", seq: undefined, held: undefined });
  return { ...over, content: "" };
}

function isUnderWay(message) {
  const metadata = metadataOf(message);
  return message.role === "status" && "seq" in metadata && metadata.continuation?.should_continue !== false;
}

/**
 * The envelopes that have not come while later ones have.
 * @type {typeof import("./index.d.ts").missing}
 */
export function missing(messages) {
  return messages
    .map(metadataOf)
    .filter((metadata) => metadata.held && metadata.held.length)
    .map(({ execution_id, seq, held }) => ({ execution_id, first: seq + 1, last: held[0].seq - 1 }));
}

function isReadable(envelope) {
  return (
    isObject(envelope) &&
    envelope.v === 1 &&
    isText(envelope.event) &&
    Object.hasOwn(EVENTS, envelope.event) &&
    Boolean(whole(envelope.seq)) &&
    isText(envelope.execution_id) &&
    isText(envelope.timestamp) &&
    isObject(envelope.data)
  );
}

/** False for what comes late, about an execution whose end is in the history. */
function isNews(messages, { event, execution_id: executionId, data }) {
  const own = messages.map(metadataOf).filter(({ execution_id }) => execution_id === executionId);
  const end = own.length ? own[own.length - 1].continuation : null;
  if (end?.should_continue !== false) return true;
  if (end.stop_reason === "completed") return false;
  const isResumed = event === "agent.status" && data.status === "in_progress";
  const step = isResumed ? (whole(data.step_count) ?? 0) + 1 : (whole(data.step_number) ?? 0);
  return step > completedSteps(messages, executionId);
}

/** True if an execution that has ended or paused goes on; false for its old start that comes again. */
function isRestart(live, { event, data, timestamp }) {
  const starts = event === "agent.status" && data.status === "in_progress";
  return starts && live.known.continuation?.should_continue === false && timestamp >= live.heardAt;
}

function isEnding({ event, data }) {
  return event === "agent.status" && (ENDED.includes(data.status) || data.status === "paused");
}

function apply(live, { event, data, timestamp }) {
  if (live.afterGap) markGap(live);
  EVENTS[event](live, data, timestamp);
}

/** How many steps of an execution the messages show to be at their end. */
function completedSteps(messages, executionId) {
  const own = messages.map(metadataOf).filter((metadata) => metadata.execution_id === executionId);
  const last = own.reduce((most, { step_number: step }) => Math.max(most, whole(step) ?? 0), 0);
  const isOpen = own.some((m) => m.status_type === "tool_call" && m.step_number === last);
  return isOpen ? last - 1 : last;
}

/**
 * The messages of a UI while one envelope after the other changes them. Everything that is known about
 * an execution is in its status, the last message of it: how far the envelopes have been heard, and
 * those that came too early.
 */
class Live {
  /** True if what comes just before the latest envelope was not heard. */
  afterGap = true;
  #status;

  constructor(messages, executionId) {
    this.messages = [...messages];
    this.executionId = executionId;
    this.#status = position(messages, statusId(executionId));
  }

  /** True if an envelope of the execution was heard before; a history knows of none. */
  get isKnown() {
    return this.#status >= 0 && Boolean(this.known.seq);
  }

  /** True if another execution has begun since, so that nothing more is heard of this one. */
  get isOver() {
    return this.#status >= 0 && !("seq" in this.known);
  }

  begin(envelope) {
    if (this.#status < 0) {
      const metadata = {
        ...{ status_type: "thinking", execution_id: this.executionId },
        ...{ step_number: completedSteps(this.messages, this.executionId) + 1, seq: 0 },
        ...(isText(envelope.agent_id) ? { agent_id: envelope.agent_id } : {}),
      };
      this.#status = this.messages.length;
      this.messages.push(uiMessage(statusId(this.executionId), "status", "", envelope.timestamp, metadata));
    }
    this.hear(envelope);
    this.afterGap = true;
  }

  /** Remember how far the envelopes have been heard, and of what moment the last one told. */
  hear({ timestamp, seq }) {
    this.afterGap = seq !== this.known.seq + 1;
    this.note({ seq });
    this.messages[this.#status] = { ...this.messages[this.#status], timestamp };
  }

  get heardAt() {
    return this.messages[this.#status].timestamp;
  }

  get known() {
    return metadataOf(this.messages[this.#status]);
  }

  get step() {
    return this.known.step_number;
  }

  /** Remember something about the execution; undefined forgets it. */
  note(entries) {
    this.messages[this.#status] = withMetadata(this.messages[this.#status], entries);
  }

  say(statusType, words) {
    this.note({ status_type: statusType });
    this.messages[this.#status] = { ...this.messages[this.#status], content: words };
  }

  /**
   * A session runs one execution at a time: what was under way when this one began is over. Agents within
   * a tool have sessions of their own. What it has said is left to the history.
   */
  endOthers() {
    const isOfSession = (message) => metadataOf(message).agent_id === this.known.agent_id;
    const running = this.messages.filter(
      (message) => isUnderWay(message) && isOfSession(message) && message.timestamp <= this.heardAt,
    );
    const over = new Set(running.map((message) => metadataOf(message).execution_id));
    over.delete(this.executionId);
    over.delete(undefined);
    if (!over.size) return;
    this.messages = this.messages.map((message) =>
      over.has(metadataOf(message).execution_id) ? asEnded(message) : message,
    );
  }

  get(id) {
    return this.messages[position(this.messages, id)];
  }

  put(message) {
    const place = position(this.messages, message.id);
    if (place >= 0) {
      this.messages[place] = message;
    } else {
      this.messages.splice(this.#status, 0, message);
      this.#status += 1;
    }
  }

  drop(id) {
    const place = position(this.messages, id);
    if (place < 0) return;
    this.messages.splice(place, 1);
    if (place < this.#status) this.#status -= 1;
  }
}

const EVENTS = {
  "agent.status": (live, data, timestamp) => {
    const { status } = data;
    if (status === "in_progress") {
      const step = (whole(data.step_count) ?? 0) + 1;
      live.note({ step_number: step, continuation: undefined, evaluations: undefined });
      live.say("thinking", THINKING);
      live.endOthers();
      return;
    }
    if (!ENDED.includes(status) && status !== "paused") return;
    finishText(live);
    const before = live.known.continuation;
    const end = {
      should_continue: false,
      stop_reason: textOrNull(data.stop_reason),
      resolved_by: before?.should_continue === false ? before.resolved_by : null,
    };
    live.note({ continuation: end });
    const words = statusText(data);
    if (status !== "failed") {
      live.say(status === "stopped" ? "continuation" : "info", words);
      return;
    }
    live.say("info", "");
    const step = whole(data.step_count) ?? 0;
    const metadata = { ...ofStep(live, step), status_type: "error", continuation: end };
    live.put(uiMessage(errorId(live.executionId, step), "status", words, timestamp, metadata));
  },

  "agent.step.started": (live, data) => {
    live.note({ step_number: whole(data.step_number) || live.step });
    // A step that was cut off when its process died is told from its beginning.
    const said = live.get(assistantId(live.executionId, live.step));
    if (said && metadataOf(said).streaming) takeBack(live, live.step);
    if (!retries(live)) live.say("thinking", THINKING);
  },

  "agent.stream.chunk": (live, data, timestamp) => {
    const piece = textOrNull(data.chunk) ?? "";
    const id = assistantId(live.executionId, live.step);
    const begunUnheard = live.afterGap && whole(data.chunk_index);
    const metadata = { ...ofStep(live, live.step), streaming: true };
    const message = live.get(id) ?? uiMessage(id, "assistant", begunUnheard ? GAP : "", timestamp, metadata);
    const content = message.content + piece;
    if (content && metadataOf(message).streaming) {
      live.put({ ...message, content });
      live.say("thinking", "");
    }
    if (data.is_complete === true) finishText(live);
  },

  "agent.tool.started": (live, data, timestamp) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const [id, step] = placeOfCall(live, callId);
    if (live.get(id)?.role === "tool") return;
    const call = { id: callId, name: tool };
    if (isObject(data.args) || isText(data.args)) call.args = data.args;
    if (isText(data.args_summary)) call.args_summary = data.args_summary;
    addCall(live, step, call, timestamp);
    const metadata = {
      ...ofStep(live, step),
      status_type: "tool_call",
      tool_call_id: callId,
      tool_name: tool,
      tool_calls: [call],
    };
    live.put(uiMessage(id, "status", `Running ${tool}`, timestamp, metadata));
    live.say("thinking", "");
  },

  "agent.tool.completed": (live, data, timestamp) => {
    const { tool, tool_call_id: callId } = data;
    if (!isText(tool) || !isText(callId)) return;
    const [id, step] = placeOfCall(live, callId);
    addCall(live, step, { id: callId, name: tool }, timestamp);
    const summary = textOrNull(data.result_summary) ?? "";
    const words = data.success === true ? summary : textOrNull(data.error) || summary;
    const cameOf = data.success === true ? { tool_result: words } : { tool_error: words };
    /** @type {Metadata} */
    const metadata = { ...ofStep(live, step), tool_call_id: callId, tool_name: tool, ...cameOf };
    if (typeof data.duration_ms === "number") metadata.tool_duration_ms = data.duration_ms;
    live.put(uiMessage(id, "tool", words, timestamp, metadata));
  },

  "agent.step.completed": (live, data) => {
    const step = whole(data.step_number) || live.step;
    finishText(live);
    if ((data.finish_reason ?? null) === null && data.has_tool_calls === false) takeBack(live, step);
    live.note({ step_number: step + 1 });
    const verdict = verdictOf(data.continuation);
    if (!verdict) return;
    live.note({ continuation: verdict });
    const words = verdict.should_continue ? retryWords(data.retry) : "";
    if (words) live.say("continuation", words);
  },

  "agent.continuation": (live, data) => {
    const verdict = verdictOf(data);
    if (!verdict) return;
    const evaluations = Array.isArray(data.evaluations) ? data.evaluations : undefined;
    live.note({ continuation: verdict, evaluations });
  },
};

function verdictOf(value) {
  if (!isObject(value) || typeof value.should_continue !== "boolean") return null;
  return {
    should_continue: value.should_continue,
    stop_reason: textOrNull(value.stop_reason),
    resolved_by: textOrNull(value.resolved_by),
  };
}

function ofStep(live, step) {
  return { execution_id: live.executionId, step_number: step };
}

/** True while the status says that something is tried again. */
function retries(live) {
  const { continuation, status_type: type } = live.known;
  return continuation?.should_continue === true && type === "continuation";
}

/** The texts of this execution that are still being added to. */
function growing(live) {
  return live.messages.filter((message) => {
    const { streaming, execution_id: executionId } = metadataOf(message);
    return streaming && executionId === live.executionId;
  });
}

/** Nothing more is added to a text of this execution. */
function finishText(live) {
  for (const message of growing(live)) live.put(withMetadata(message, { streaming: undefined }));
}

/** What was not heard may have been text, so that what there is of it is not shown as whole. */
function markGap(live) {
  for (const message of growing(live)) {
    if (!message.content.endsWith(GAP)) live.put({ ...message, content: message.content + GAP });
  }
}

/** The text of an answer that broke off goes, since nothing of it is in the history. */
function takeBack(live, step) {
  const id = assistantId(live.executionId, step);
  const message = live.get(id);
  if (message && !metadataOf(message).tool_calls?.length) live.drop(id);
}

/** The id of a call's message and its step: of the one that waits or runs, else of the current step. */
function placeOfCall(live, callId) {
  for (let index = live.messages.length - 1; index >= 0; index -= 1) {
    const message = live.messages[index];
    const metadata = metadataOf(message);
    const isOwn = metadata.execution_id === live.executionId && metadata.tool_call_id === callId;
    if (isOwn && isStatus(message, "tool_call")) {
      return [message.id, whole(metadata.step_number) || live.step];
    }
  }
  return [toolId(live.executionId, live.step, callId), live.step];
}

/** The call in the assistant's message of its step, which may have no text at all. */
function addCall(live, step, call, timestamp) {
  const id = assistantId(live.executionId, step);
  const message = live.get(id) ?? uiMessage(id, "assistant", "", timestamp, ofStep(live, step));
  const calls = metadataOf(message).tool_calls ?? [];
  if (calls.some((known) => known.id === call.id)) return;
  live.put(withMetadata(message, { tool_calls: [...calls, call] }));
}

// Parts of messages

function uiMessage(id, role, content, timestamp, metadata) {
  return { id, role, content, timestamp, metadata };
}

/** The message with these entries in its metadata; one that is undefined is taken out. */
function withMetadata(message, entries) {
  const metadata = { ...metadataOf(message), ...entries };
  for (const key of Object.keys(entries)) if (entries[key] === undefined) delete metadata[key];
  return { ...message, metadata };
}

function metadataOf(message) {
  return isObject(message.metadata) ? message.metadata : {};
}

function isStatus(message, statusType) {
  return message.role === "status" && metadataOf(message).status_type === statusType;
}

function position(messages, id) {
  let index = messages.length - 1;
  while (index >= 0 && messages[index].id !== id) index -= 1;
  return index;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value) {
  return typeof value === "string";
}

function isBlank(text) {
  return !isText(text) || BLANK.test(text);
}

function textOrNull(value) {
  return isText(value) ? value : null;
}

/** The number if it is a whole one from zero on that every JSON reader understands. */
function whole(number) {
  return Number.isSafeInteger(number) && number >= 0 ? number : null;
}
