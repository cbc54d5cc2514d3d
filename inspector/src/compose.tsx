/** The field for the next question. */

import { useSignal } from "@preact/signals";
import { isRunning } from "whyloop-ui";
import { stop } from "./actions";
import { may, post, sessionPath, type Info } from "./api";
import type { SessionData } from "./session_data";

export function Compose({ data, info, onSend }: { data: SessionData; info: Info | null; onSend: () => void }) {
  const text = useSignal("");
  const problem = useSignal("");
  const runs = isRunning(data.view.value);
  const why = reasonAgainst(data, info);
  const send = async (event?: Event): Promise<void> => {
    event?.preventDefault();
    const asked = text.value.trim();
    if (!asked || why) return;
    text.value = problem.value = "";
    const remove = data.add(asked);
    onSend();
    try {
      await post(`${sessionPath(data.id)}/messages`, { text: asked }, data.server);
    } catch (cause) {
      remove();
      problem.value = (cause as Error).message;
      text.value ||= asked;
    }
    void data.read();
  };
  const typed = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void send();
  };
  const target = { id: data.id, canRun: true, server: data.server, done: () => void data.read() };
  return (
    <form class="compose" onSubmit={send}>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      <textarea
        aria-label="Next question"
        rows={1}
        placeholder={why || "Ask the next question"}
        disabled={why !== ""}
        value={text.value}
        onInput={({ currentTarget }) => ((text.value = currentTarget.value), (problem.value = ""))}
        onKeyDown={typed}
      />
      {runs && may(info, "send") ? (
        <button
          type="button"
          class="button"
          disabled={data.isStopping.value}
          onClick={() => stop(target, () => (data.isStopping.value = true))}
        >
          {data.isStopping.value ? "Stopping…" : "Stop"}
        </button>
      ) : (
        <button class="button" disabled={why !== "" || !text.value.trim()}>
          Send
        </button>
      )}
    </form>
  );
}

/** Return why no question can be asked now; "" if one can. */
function reasonAgainst(data: SessionData, info: Info | null): string {
  if (!may(info, "send")) return "You may read here, and not ask";
  if (info && !info.can_run) return "This server runs no agent";
  if (isRunning(data.view.value)) return data.isStopping.value ? "Stopping…" : "The agent is working";
  if (data.state.value?.pending_calls.length) return "Waits for a decision";
  return "";
}
