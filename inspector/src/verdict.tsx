/** The verdict: why the session is where it is, and what would let it continue. */

import type { Info } from "./api";
import type { SessionData } from "./session_data";

export function Verdict({ data }: { data: SessionData; info: Info | null }) {
  return (
    <header class="verdict">
      <div><h1>{data.trace.value!.headline}</h1></div>
    </header>
  );
}
