/** Times that pass while one looks at them. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { age, duration } from "./format";
import { saved } from "./saved";

/** The time in milliseconds; in a saved file it never changes. */
export const timeNow = saved ? () => Date.parse(saved!.saved_at) : Date.now;

/** Return a hook for the time in milliseconds, which moves so often while something shows it. */
function clock(milliseconds: number): () => number {
  const now = signal(timeNow());
  let shown = 0;
  let timer: ReturnType<typeof setInterval> | undefined;
  const tick = (): void => {
    if (!document.hidden) now.value = timeNow();
  };
  return () => {
    useEffect(() => {
      shown += 1;
      timer ??= setInterval(tick, milliseconds);
      return () => {
        shown -= 1;
        if (shown > 0) return;
        clearInterval(timer);
        timer = undefined;
      };
    }, []);
    return Math.max(now.value, timeNow());
  };
}

const useSlowClock = clock(1000);
const useClock = clock(250);

/** How long ago a moment was. */
export function Age({ time }: { time: string }) {
  return <>{age(time, useSlowClock())}</>;
}

/** How long something has lasted. */
export function Elapsed({ since }: { since: string }) {
  const seconds = Math.max(0, (useClock() - Date.parse(since)) / 1000);
  return <span class="quiet">{duration(seconds < 10 ? Math.floor(seconds * 10) / 10 : Math.floor(seconds))}</span>;
}

/** How long it takes until a moment, in whole seconds. */
export function Countdown({ until }: { until: string }) {
  const seconds = Math.ceil((Date.parse(until) - useClock()) / 1000);
  return seconds > 0 ? <> in {duration(seconds).replace(".0 s", " s")}</> : <> now</>;
}
