/**
 * How messages are displayed: their texts, which text is shown, which call a result belongs to.
 * All text is data here: nothing is parsed, evaluated or turned into markup.
 */

import { isText, metadataOf } from "./message.js";
import { reveal } from "./reveal.js";

export const THINKING = "Thinking…";
export const WRAPPING_UP = "Wrapping up…";
export const WAITING = "Waiting for a person";
const SHOWN_ARGUMENTS = 3;

// White space as in Python.
const SPACE = "[\\s\\x1c-\\x1f\\x85\\ufeff]";
const BLANK = new RegExp(`^${SPACE}*$`);
// A JSON object or a list of them, whole or cut off, even in a fence or after the tag of a tool call.
const JSON_TEXT = new RegExp(
  `^${SPACE}*(?:\`\`\`[A-Za-z]*${SPACE}*|<[A-Za-z_|]+>${SPACE}*)?` +
    `(?:\\[${SPACE}*)*(?:\\{${SPACE}*(?:["'}]|[A-Za-z0-9_]+${SPACE}*:|$)|\\[${SPACE}*[\\]"])`,
);

/**
 * Return the text to show for the data of an `agent.status`, or for a message's `continuation`.
 * @type {typeof import("./index.js").statusText}
 */
export function statusText(status) {
  const { status: name, stop_reason: reason, error_message: error, should_continue: continues } = status;
  if (name === "in_progress" || continues === true) return THINKING;
  if (isText(error) && error) return error;
  if (isText(reason) && reason && reason !== "completed") return `Agent stopped: ${reason}`;
  if (name === "paused" || (continues === false && (reason === undefined || reason === null))) return WAITING;
  return "";
}

/**
 * Return the first three arguments, such as `query: 'dbplus', types: ["program"]`, each value cut short. A person
 * decides about a call by what it shows, so characters that reverse or hide text become escapes.
 * @type {typeof import("./index.js").argsSummary}
 */
export function argsSummary(args, longest = 30) {
  if (isText(args)) return reveal(cut(args, longest));
  const shown = Object.entries(args).slice(0, SHOWN_ARGUMENTS);
  return reveal(shown.map(([key, value]) => `${cut(key, longest)}: ${shortValue(value, longest)}`).join(", "));
}

function shortValue(value, longest) {
  if (isText(value)) return `'${cut(value, longest)}'`;
  return cut(shortJson(value, longest), longest);
}

/** Return the beginning of a value as JSON: numbers as 1e21, and no escapes for lone surrogates. */
function shortJson(value, longest) {
  const json = JSON.stringify(value) ?? String(value);
  // An escape has at most six characters, so the rest of a long value need not be read.
  return json
    .slice(0, longest * 6)
    .replace(/"(?:[^"\\]|\\.)*"?|e\+/g, (found) => (found === "e+" ? "e" : withoutSurrogates(found)));
}

function withoutSurrogates(quoted) {
  return quoted.replace(/\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)/g, (escape) =>
    escape.length === 6 ? "\ufffd" : escape,
  );
}

/** Return the beginning of a text, counted in code points. */
function cut(text, longest) {
  // A code point has at most two units, so the rest of a long text need not be read.
  return wellFormed(Array.from(text.slice(0, longest * 2)).slice(0, longest).join(""));
}

/** Return the text with lone surrogates replaced: UTF-8 cannot encode them. */
function wellFormed(text) {
  return text.replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, (found) =>
    found.length === 2 ? found : "\ufffd",
  );
}

/**
 * Return whether the text of a message is shown as text: never that of a tool, which is shown under its
 * call; beside tool calls only language.
 * @type {typeof import("./index.js").shouldRenderContent}
 */
export function shouldRenderContent(message) {
  if (message.role === "tool" || isBlank(message.content)) return false;
  const calls = metadataOf(message).tool_calls;
  if (message.role === "assistant" && calls && calls.length) return !JSON_TEXT.test(message.content);
  return true;
}

function isBlank(text) {
  return !isText(text) || BLANK.test(text);
}

/**
 * Return whether a message is a status that the history replaces; an error stays.
 * @type {typeof import("./index.js").isEphemeral}
 */
export function isEphemeral(message) {
  return message.role === "status" && metadataOf(message).status_type !== "error";
}

/**
 * Return the entries to draw, in order: `{message, calls}`, where each call is `{call, result}`.
 * @type {typeof import("./index.js").group}
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

/** Return the latest call without a result to which this message is the result. */
function slotOf(drawn, message) {
  const callId = metadataOf(message).tool_call_id ?? null;
  if (callId === null || (message.role !== "tool" && message.role !== "status")) return null;
  for (let index = drawn.length - 1; index >= 0; index -= 1) {
    const slot = drawn[index].calls.find(({ call, result }) => call.id === callId && result === null);
    if (slot) return slot;
  }
  return null;
}
