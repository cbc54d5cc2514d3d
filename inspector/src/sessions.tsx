/** The list of sessions: newest first, live. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, type SessionPage, type SessionSummary } from "./api";
import { age, count, duration, money } from "./format";
import { StatusSign } from "./icons";
import { onListChange } from "./live";
import { go, sessionLink } from "./routes";

const sessions = signal<SessionSummary[]>([]);

export function Sessions() {
  useEffect(() => {
    void get<SessionPage>("sessions").then((page) => (sessions.value = page.sessions));
    return onListChange((changed) => {
      const ids = new Set(changed.map(({ agent_id }) => agent_id));
      const others = sessions.value.filter(({ agent_id }) => !ids.has(agent_id));
      sessions.value = [...changed, ...others].sort((a, b) => b.started_at.localeCompare(a.started_at));
    });
  }, []);
  return (
    <div class="page">
      <h1>Sessions</h1>
      <div class="card">
        <table class="list">
          <tbody>{sessions.value.map((session) => <Row key={session.agent_id} session={session} />)}</tbody>
        </table>
      </div>
    </div>
  );
}

function Row({ session }: { session: SessionSummary }) {
  const link = sessionLink(session.agent_id);
  return (
    <tr data-row onClick={() => go(link)}>
      <td><StatusSign status={session.status} /></td>
      <td><a href={link}>{session.agent_id}</a> <span class="quiet">{session.title}</span></td>
      <td>{session.reason}</td>
      <td>{session.resolved_by ?? "Not decided yet"}</td>
      <td class="number">{session.step_count}</td>
      <td class="number">{count(session.tokens ?? 0)}</td>
      <td class="number">{money(session.cost)}</td>
      <td class="number">{duration(session.active_seconds ?? 0)}</td>
      <td class="number">{age(session.updated_at)}</td>
    </tr>
  );
}
