/** The parts of a message, their ids, and checks of unknown values; shared by the other modules. */

// The server and a client derive the same ids, so that a stored message replaces a streamed one.
export const assistantId = (executionId, step) => `${executionId}:${step}:assistant`;
export const toolId = (executionId, step, callId) => `${executionId}:${step}:tool:${callId}`;
export const errorId = (executionId, step) => `${executionId}:${step}:error`;
export const questionId = (executionId, id) => `${executionId}:question:${id}`;
export const statusId = (executionId) => `${executionId}:status`;

export function uiMessage(id, role, content, timestamp, metadata) {
  return { id, role, content, timestamp, metadata };
}

/** Return the message with these entries in its metadata, without those that are undefined. */
export function withMetadata(message, entries) {
  const metadata = { ...metadataOf(message), ...entries };
  for (const key of Object.keys(entries)) if (entries[key] === undefined) delete metadata[key];
  return { ...message, metadata };
}

export function metadataOf(message) {
  return isObject(message.metadata) ? message.metadata : {};
}

/** Return whether a message is the status of a tool call that has no result yet. */
export function isOpenCall(message) {
  return message.role === "status" && isText(metadataOf(message).tool_call_id);
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function isText(value) {
  return typeof value === "string";
}

export function textOrNull(value) {
  return isText(value) ? value : null;
}

/** Return the number if it is a non-negative integer that JSON represents exactly, else null. */
export function whole(number) {
  return Number.isSafeInteger(number) && number >= 0 ? number : null;
}
