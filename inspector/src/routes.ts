/** Where the reader is: the fragment of the address. */

import { computed, signal } from "@preact/signals";
import { saved } from "./saved";

const fragment = signal(location.hash);
addEventListener("hashchange", () => (fragment.value = location.hash));

/** The conditions of the list of sessions, named as in the API; "" is none. */
export interface Filters {
  status: string;
  search: string;
  stop_reason: string;
  resolved_by: string;
  /** Such as "team=sales, plan=pro". */
  metadata: string;
  /** How long ago a session may have started: "1h", "24h", "7d", "30d". */
  since: string;
  /** The limit of a what-if over the list, and its value. */
  limit: string;
  value: string;
}

export const NO_FILTERS: Filters = {
  status: "", search: "", stop_reason: "", resolved_by: "", metadata: "", since: "", limit: "", value: "",
};

export type Route =
  | { page: "sessions"; filters: Filters }
  | { page: "approvals" }
  | { page: "session"; id: string; step: number | null }
  | { page: "chat"; id: string }
  | { page: "compare"; left: string; right: string };

/** The page that the address names. */
export const route = computed<Route>(() => {
  const [path = "", ...query] = fragment.value.replace(/^#\/?/, "").split("?");
  const [page, first = "", second = "", third = ""] = path.split("/").map(decode);
  if (page === "approvals" && !saved) return { page };
  if (page === "chat" && first && !saved) return { page, id: first };
  if (page === "compare" && !saved) return { page, left: first, right: second };
  if (page === "s" && first) return { page: "session", id: first, step: second === "step" ? Number(third) || null : null };
  if (saved) return { page: "session", id: saved.state.session.agent_id, step: null };
  return { page: "sessions", filters: filtersOf(query.join("?")) };
});

function filtersOf(query: string): Filters {
  const given = new URLSearchParams(query);
  const names = Object.keys(NO_FILTERS) as (keyof Filters)[];
  return Object.fromEntries(names.map((name) => [name, given.get(name) ?? ""])) as unknown as Filters;
}

/** Decode a part of an address; one that cannot be decoded stays as it is. */
export function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of the list of sessions under some filters. */
export function sessionsLink(filters: Partial<Filters> = {}): string {
  const given = Object.entries(filters).filter(([, value]) => value);
  return given.length ? `#/sessions?${new URLSearchParams(given)}` : "#/sessions";
}

/** The address of a session, or of one of its steps. */
export function sessionLink(id: string, step: number | null = null): string {
  const session = `#/s/${encodeURIComponent(id)}`;
  return step === null ? session : `${session}/step/${step}`;
}

/** The address of a comparison. */
export function compareLink(left: string, right: string): string {
  return `#/compare/${encodeURIComponent(left)}/${encodeURIComponent(right)}`;
}

/** Go to an address that takes the place of this one in the history, for what changes with every key. */
export function goInPlace(link: string): void {
  history.replaceState(null, "", link);
  fragment.value = location.hash;
}

/** Go to an address. The page knows it at once: the browser reports the change only after the current task. */
export function go(link: string): void {
  location.hash = link;
  fragment.value = location.hash;
}

/** Return an address of the list with some filters changed, the others as they are now, not as they were drawn. */
export function changedFilters(changes: Partial<Filters>): string {
  const current = route.peek();
  return sessionsLink({ ...(current.page === "sessions" ? current.filters : NO_FILTERS), ...changes });
}
