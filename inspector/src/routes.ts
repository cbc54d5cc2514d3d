/** Where the reader is: the fragment of the address. */

import { computed, signal } from "@preact/signals";

const fragment = signal(location.hash);
addEventListener("hashchange", () => (fragment.value = location.hash));

export type Route =
  | { page: "sessions" }
  | { page: "approvals" }
  | { page: "session"; id: string; step: number | null }
  | { page: "compare"; left: string; right: string };

/** The page that the address names. */
export const route = computed<Route>(() => {
  const [page, first = "", second = "", third = ""] = fragment.value.replace(/^#\/?/, "").split("?")[0]!.split("/").map(decode);
  if (page === "approvals") return { page };
  if (page === "compare") return { page, left: first, right: second };
  if (page === "s" && first) return { page: "session", id: first, step: second === "step" ? Number(third) || null : null };
  return { page: "sessions" };
});

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
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

/** Go to an address. */
export function go(link: string): void {
  location.hash = link;
}
