/** The questions of all sessions that wait for a person. */

import { signal } from "@preact/signals";

/** How many questions wait; the top bar shows it. */
export const waiting = signal(0);

export function Approvals() {
  return <div class="page"><h1>Approvals</h1></div>;
}
