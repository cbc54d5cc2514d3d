/** The ledger: the vote of every rule after every step. */

import { VoteSign } from "./icons";
import { voteOf } from "./format";
import type { SessionData } from "./session_data";

export function Ledger({ data }: { data: SessionData; selected: number | null }) {
  return (
    <section class="card ledger" aria-label="Ledger">
      {data.latest.value.map((step) => (
        <p key={step.index}>
          {step.number}: {step.outcome?.evaluations.map((each) => <VoteSign key={each.criterion} vote={voteOf(each.decision)} />)}
        </p>
      ))}
    </section>
  );
}
