/** From the envelopes and the history of a whyloop session to what a chat UI shows. */

export { argsSummary, group, isEphemeral, shouldRenderContent, statusText } from "./display.js";
export { reduce } from "./reduce.js";
export { addMessage, isRunning, reconcile, removeMessage, viewOf } from "./view.js";
