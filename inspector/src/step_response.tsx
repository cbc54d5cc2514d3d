/** What the model said and called, and what came back. */

import { reveal } from "whyloop-ui";
import { raisedBy, type Call, type WholeStep } from "./api";
import { argumentsText, callTone } from "./call";
import { duration } from "./format";
import { CALL_ICONS, CALL_WORDS, Icon } from "./icons";
import { Code, Markdown } from "./markdown";

export function ResponseView({ step }: { step: WholeStep }) {
  const { reasoning, text } = step;
  return (
    <>
      {reasoning && (
        <details class="reasoning" open>
          <summary>Reasoning</summary>
          <p class="plain-text">{reasoning}</p>
        </details>
      )}
      {text && <Markdown text={text} />}
      {text !== undefined && !text && <p class="quiet">The model wrote no text in this step.</p>}
      {step.failures.map((failure, index) => (
        <div key={index} class="error-line">
          <Icon name="cross" />
          <span class="plain-text">
            {failure.type}: {failure.raised ?? failure.message}
          </span>
        </div>
      ))}
      {step.tool_calls.length > 0 && <h3>Tool calls</h3>}
      {step.tool_calls.map((call) => (
        <CallDetail key={call.id} call={call} raised={raisedBy(step, call.id)} />
      ))}
    </>
  );
}

function CallDetail({ call, raised }: { call: Call; raised: string | undefined }) {
  const tone = callTone(call.status);
  // The error of a call that was denied says by whom and why.
  const approvals = call.approvals.filter(({ verdict }) => verdict !== "denied" || !call.error);
  return (
    <article class={`call ${call.status}`}>
      <div class="call-line still">
        <Icon name={CALL_ICONS[call.status]} class={call.status === "succeeded" ? "t-s" : tone} />
        <span class="call-name">{call.name}</span>
        <span class="call-summary">{call.id}</span>
        <span class={`call-state ${tone}`}>
          {CALL_WORDS[call.status]}{" "}
          {call.duration_ms ? <span class="quiet">{duration(call.duration_ms / 1000)}</span> : null}
        </span>
      </div>
      {call.error && <p class={`call-note ${tone}`}>{raised ?? call.error}</p>}
      {approvals.map(({ verdict, by, reason }, index) => (
        <p key={index} class="call-note quiet">
          {verdict} by {by}
          {reason ? `: ${reason}` : ""}
        </p>
      ))}
      {call.changes?.map((change, index) => (
        <p key={index} class="call-note quiet">
          Arguments changed by {String(change.by ?? "a hook")}
        </p>
      ))}
      {(call.result_changed_by?.length ?? 0) > 0 && (
        <p class="call-note quiet">Result changed by {call.result_changed_by!.join(", ")}</p>
      )}
      <div class="call-content">
        {call.arguments !== undefined && call.arguments !== null && (
          <Code label="Arguments" language="arguments" text={argumentsText(call.arguments)} />
        )}
        {call.arguments === undefined && call.args_summary && <p class="quiet">{reveal(call.args_summary)}</p>}
        {typeof call.result === "string" && <Code label="Result" language="result" text={resultText(call.result)} />}
      </div>
    </article>
  );
}

/** Return JSON with indentation, and any other result as it is. */
function resultText(result: string): string {
  if (!/^\s*[[{]/.test(result) || result.length > 100_000) return result;
  try {
    return JSON.stringify(JSON.parse(result), null, 2);
  } catch {
    return result;
  }
}
