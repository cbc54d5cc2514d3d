/** Times that pass while one looks at them. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { duration } from "./format";

const now = signal(Date.now());
let shown = 0;
let timer: ReturnType<typeof setInterval> | undefined;

/** Keep the time current while something shows it. */
function useNow(): number {
  useEffect(() => {
    shown += 1;
    timer ??= setInterval(() => (now.value = Date.now()), 250);
    return () => {
      shown -= 1;
      if (shown > 0) return;
      clearInterval(timer);
      timer = undefined;
    };
  }, []);
  return Math.max(now.value, Date.now());
}

/** How long something has lasted. */
export function Elapsed({ since }: { since: string }) {
  const seconds = Math.max(0, (useNow() - Date.parse(since)) / 1000);
  return <span class="quiet">{duration(seconds < 10 ? Math.floor(seconds * 10) / 10 : Math.floor(seconds))}</span>;
}

/** How long it takes until a moment, in whole seconds. */
export function Countdown({ until }: { until: string }) {
  const seconds = Math.ceil((Date.parse(until) - useNow()) / 1000);
  return seconds > 0 ? <> in {duration(seconds).replace(".0 s", " s")}</> : <> now</>;
}
