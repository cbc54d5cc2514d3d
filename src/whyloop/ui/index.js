/** From the envelopes and the history of a whyloop session to what a chat UI shows. */

export { escapeInvisible, reveal } from "./reveal.js";
export { argsSummary, group, isEphemeral, shouldRenderContent, statusText } from "./display.js";
export { reconcile, viewOf } from "./history.js";
export { reduce } from "./reduce.js";
export { addMessage, isRunning, removeMessage } from "./view.js";
