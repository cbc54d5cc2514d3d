/** One session: the headline, what would let it continue, and the evidence. */

import { useEffect, useMemo } from "preact/hooks";
import type { Info } from "./api";
import { Conversation } from "./conversation";
import { Ledger } from "./ledger";
import { SessionData } from "./session_data";
import { StepDetail } from "./step";
import { Timeline } from "./timeline";

export function SessionPage({ id, step, info }: { id: string; step: number | null; info: Info | null }) {
  const data = useMemo(() => new SessionData(id), [id]);
  useEffect(() => {
    data.open();
    return () => data.close();
  }, [data]);
  const trace = data.trace.value;
  return (
    <div class="session">
      <header class="verdict"><h1>{trace?.headline}</h1></header>
      <div class="panes">
        {step === null ? <Conversation data={data} info={info} /> : <StepDetail data={data} index={step} />}
        <div class="evidence">
          <Ledger data={data} selected={step} />
          <Timeline data={data} selected={step} />
        </div>
      </div>
    </div>
  );
}
