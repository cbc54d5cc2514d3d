/** The time, for texts that say how long ago something was. */

import { signal } from "@preact/signals";
import { age } from "./format";

/** Now, in milliseconds; it moves every second while the page is visible. */
export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** How long ago a moment was; it stays current. */
export function Age({ time }: { time: string }) {
  return <>{age(time, now.value)}</>;
}
