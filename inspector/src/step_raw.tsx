/** A step as data: itself, its envelopes, and the snapshot of the session, each loaded on demand. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, sessionPath, type ApiError, type WholeStep } from "./api";
import { CopyButton } from "./copy";
import { count } from "./format";
import { saved } from "./saved";
import type { SessionData } from "./session_data";

const KINDS = { step: "Step", envelopes: "Envelopes", snapshot: "Snapshot" };
const LONGEST = 50_000;
const PAGE = 1000;

type Kind = keyof typeof KINDS;

interface Envelope {
  event: string;
  execution_id: string;
  data: { step_number?: number };
}

export function RawStep({ data, step }: { data: SessionData; step: WholeStep }) {
  const kind = useSignal<Kind>("step");
  const text = useSignal<string | null>(null);
  useEffect(() => {
    text.value = null;
    const closing = new AbortController();
    const show = (value: unknown): void =>
      void (closing.signal.aborted || (text.value = JSON.stringify(value, null, 2)));
    if (kind.value === "step") show(step);
    else if (kind.value === "snapshot") {
      get(`${sessionPath(data.id)}/snapshot`, {}, closing.signal, data.server).then(show, problem(show));
    } else envelopesOf(data, step, closing.signal).then(show, problem(show));
    return () => closing.abort();
  }, [kind.value, step]);
  return (
    <>
      <p class="line">
        {/* A saved file has the step alone. */}
        {!saved && (
          <span class="segments small">
            {(Object.keys(KINDS) as Kind[]).map((name) => (
              <button key={name} type="button" aria-pressed={name === kind.value} onClick={() => (kind.value = name)}>
                {KINDS[name]}
              </button>
            ))}
          </span>
        )}
        {text.value !== null && <CopyButton label="Copy as JSON" text={text.value} />}
      </p>
      {text.value === null ? <p class="quiet">Loading</p> : <Json text={text.value} />}
    </>
  );
}

function problem(show: (value: unknown) => void) {
  return (cause: ApiError): void => show({ error: cause.message });
}

function Json({ text }: { text: string }) {
  const rest = text.length - LONGEST;
  return (
    <>
      <pre class="json">{text.slice(0, LONGEST)}</pre>
      {rest > 0 && <p class="quiet">{count(rest)} characters more; the copy has them.</p>}
    </>
  );
}

/** Return the envelopes of a step: those after the end of the step before it, up to its own end. */
async function envelopesOf(data: SessionData, step: WholeStep, signal: AbortSignal): Promise<Envelope[]> {
  let found: Envelope[] = [];
  let after: string | null = `${encodeURIComponent(step.execution_id)}:0`;
  while (after !== null) {
    const page: { events: Envelope[]; next: string | null; has_more: boolean } = await get(
      `${sessionPath(data.id)}/events`,
      { after, limit: PAGE },
      signal,
      data.server,
    );
    for (const envelope of page.events) {
      if (envelope.execution_id !== step.execution_id) return found;
      found.push(envelope);
      if (envelope.event !== "agent.step.completed") continue;
      if ((envelope.data.step_number ?? 0) >= step.number) return found;
      found = [];
    }
    after = page.has_more ? page.next : null;
  }
  return found;
}
