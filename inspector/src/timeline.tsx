/** The timeline: model time, tool calls, backoff and waiting, to scale. */

import type { SessionData } from "./session_data";

export function Timeline({ data }: { data: SessionData; selected: number | null }) {
  return <section class="card timeline" aria-label="Timeline">{data.latest.value.length} steps</section>;
}
