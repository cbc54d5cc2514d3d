/** One step: what the model saw, said and called, what came back, and every vote. */

import type { SessionData } from "./session_data";

export function StepDetail({ data, index }: { data: SessionData; index: number }) {
  return <section class="card step" aria-label={`Step ${index}`}>{data.id}</section>;
}
