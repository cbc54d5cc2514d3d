/** From the envelopes and the history of a whyloop session to what a chat UI shows. */

export { argsSummary, group, isEphemeral, shouldRenderContent, statusText } from "./display.js";
export { isRunning, missing, reconcile, reduce } from "./live.js";
