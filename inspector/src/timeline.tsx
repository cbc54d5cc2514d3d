/** The timeline: model time, tool calls, backoff and waiting, to scale. */

import type { Evidence } from "./evidence";

export function Timeline({ evidence }: { evidence: Evidence; selected: number | null }) {
  return <section class="card timeline" aria-label="Timeline">{evidence.steps.value.length} steps</section>;
}
