/** What people do to a session: each asks for a confirmation that says what will happen. */

import { own, post, sessionPath, type NextAction, type Server, type SessionState } from "./api";
import { confirm } from "./dialogs";
import { counted, duration, money } from "./format";
import { go, sessionLink } from "./routes";

/** The session that an action is about. */
export interface Target {
  id: string;
  /** False if the server runs no agent: then decisions are recorded, and another process continues. */
  canRun: boolean;
  server?: Server;
  /** The name of the reader; absent if the server does not know it. */
  user?: string | null;
  /** Called after the action, also if it failed: another client may have been faster. */
  done?: () => void;
}

/** Send an action. */
export async function send<T>(target: Target, path: string, body: unknown): Promise<T> {
  try {
    return await post<T>(`${sessionPath(target.id)}/${path}`, body, target.server ?? own);
  } finally {
    target.done?.();
  }
}

/** The amounts of a grant: "10 steps", "10,000 tokens and 5 min". */
export function grantText(grant: NonNullable<NextAction["grant"]>): string {
  const parts = [
    grant.steps ? counted(grant.steps, "step") : "",
    grant.tokens ? counted(grant.tokens, "token") : "",
    grant.seconds ? duration(grant.seconds) : "",
    Number(grant.usd) ? money(grant.usd) : "",
  ].filter(Boolean);
  return parts.join(" and ");
}

/** The words of the button that resumes. */
export function resumeText(action: NextAction): string {
  const grant = action.grant && grantText(action.grant);
  return grant ? `Grant ${grant} and resume` : "Resume";
}

/** Continue a run that was paused, stopped or cut off. */
export function resume(target: Target, action: NextAction): void {
  const grant = action.grant && grantText(action.grant);
  confirm({
    title: resumeText(action),
    effects: [
      ...(grant ? [`The run gets ${grant} on top of its limits, and that is recorded.`] : []),
      "The run continues where it ended: the model is called, and tools may run.",
      "It ends again when a rule says so, or when you stop it.",
    ],
    button: resumeText(action),
    run: () => send(target, "resume", grant ? { grant: action.grant } : {}),
  });
}

/** End a run in progress. */
export function stop(target: Target, stopping?: () => void): void {
  confirm({
    title: "Stop the run",
    effects: [
      "The model call in progress is interrupted, and running tools get a moment to end.",
      "What was done so far is kept, and the run can be resumed.",
    ],
    button: "Stop",
    run: async () => {
      const { stopped } = await send<{ stopped: boolean }>(target, "stop", { reason: "Stopped in the inspector" });
      if (stopped) stopping?.();
    },
  });
}

/** Create a session with the history up to a step, and go there. */
export function fork(target: Target, step: number): void {
  confirm({
    title: `Fork from step ${step}`,
    effects: [
      `A new session is created with everything up to step ${step}.`,
      "This session does not change.",
      "The new one waits for you: nothing runs before you resume it or ask a question.",
    ],
    button: `Fork from step ${step}`,
    run: async () => {
      const { session } = await send<SessionState>(target, "fork", { step });
      go(sessionLink(session.agent_id));
    },
  });
}
