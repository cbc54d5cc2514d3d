// The types of the package, as an application uses them: `tsc` accepts this file.
import { isRunning, reconcile, reduce, viewOf, type Envelope, type Run, type UiMessage, type View } from "whyloop-ui";
import { useSession } from "whyloop-ui/react";
import { followSession, type FollowedSession } from "whyloop-ui/session";

/** `event` tells which `data` an envelope has, and no event is left over. */
export function describe(envelope: Envelope): string {
  switch (envelope.event) {
    case "agent.status":
      return `${envelope.data.previous_status} ${envelope.data.status} ${envelope.data.step_count.toFixed()}`;
    case "agent.step.started":
      return envelope.data.available_tools.join();
    case "agent.step.completed":
      return envelope.data.continuation.resolved_by ?? envelope.data.usage.total.toFixed();
    case "agent.tool.started":
      return envelope.data.args_summary ?? envelope.data.tool;
    case "agent.tool.completed":
      return envelope.data.success ? envelope.data.result_summary : String(envelope.data.error);
    case "agent.approval.requested":
      return envelope.data.question;
    case "agent.approval.decided":
      return `${envelope.data.verdict} by ${envelope.data.by}`;
    case "agent.retry":
      return envelope.data.wait_seconds.toFixed();
    case "agent.stream.chunk":
      return envelope.data.chunk;
    case "agent.continuation":
      return envelope.data.evaluations.map(({ criterion }) => criterion).join();
    case "agent.event":
      return envelope.data.name;
  }
  const nothing: never = envelope;
  return nothing;
}

export function refused(envelope: Envelope): void {
  if (envelope.event === "agent.retry") {
    // @ts-expect-error A retry has no chunk.
    envelope.data.chunk;
  }
  // @ts-expect-error Not every event has a tool.
  envelope.data.tool;
}

export function follow(stored: readonly UiMessage[], envelopes: readonly Envelope[]): View {
  const view = reconcile(envelopes.reduce(reduce, viewOf(stored)), stored);
  const run: Run | undefined = view.runs.at(-1);
  const missing: number = run?.gap ? run.gap.last - run.gap.first + 1 : 0;
  // @ts-expect-error A view is not changed.
  view.messages.push(stored[missing]);
  return isRunning(view) ? view : viewOf();
}

export function connect(show: (view: View) => void): FollowedSession {
  const session = followSession("/agents/sessions/42", show, { onError: (error) => console.log(error.message) });
  session.add({ content: "Who?" })();
  return session;
}

export function Component({ url }: { url: string | null }): string {
  const { view, error, add } = useSession(url, { withCredentials: true });
  add({ content: "Who?" });
  return error?.message ?? view.messages.map(({ content }) => content).join();
}
