/** The messages before the last ones that a history has. */

import { signal } from "@preact/signals";
import type { UiMessage, View } from "whyloop-ui";
import { get, sessionPath, type Server } from "./api";
import { parse } from "./json";

const PAGE = 200;

interface Page {
  messages: UiMessage[];
  next: number | null;
}

export class OlderMessages {
  readonly messages = signal<readonly UiMessage[]>([]);
  /** True if the session has messages before these. */
  readonly hasMore = signal(false);
  /** How many messages of the session come before the first one that is known. */
  #before: number | null = null;
  #pageOf: Promise<void> | null = null;

  constructor(
    private readonly id: string,
    private readonly server: Server,
  ) {}

  /** Return a `fetch` that notes where each history begins. */
  watch(request: typeof fetch): typeof fetch {
    return async (url, options) => {
      const answer = await request(url, options);
      if (!String(url).endsWith("/messages") || !answer.ok) return answer;
      const stored = parse(await answer.text()) as Page;
      this.#latest = stored.next;
      return { ok: true, status: answer.status, json: async () => stored } as Response;
    };
  }

  /** Where the latest history begins. */
  #latest: number | null = null;

  /** Keep what a later view no longer has: a history begins with later messages as the session grows. */
  follow(before: View, view: View): void {
    const [first, earlier] = [firstOf(view), firstOf(before)];
    if (earlier === undefined && this.messages.peek().length === 0) return this.#begin();
    if (first === undefined || first === earlier) return;
    const known = [...this.messages.peek(), ...before.messages];
    const place = known.findIndex(({ id }) => id === first);
    if (place >= 0) this.messages.value = known.slice(0, place);
    else this.#begin();
  }

  #begin(): void {
    this.messages.value = [];
    this.#before = this.#latest;
    this.hasMore.value = this.#before !== null;
  }

  /** Load one more page. */
  async load(): Promise<void> {
    this.#pageOf ??= this.#load().finally(() => (this.#pageOf = null));
    return this.#pageOf;
  }

  async #load(): Promise<void> {
    const before = this.#before;
    if (before === null) return;
    const query = { before, limit: PAGE };
    const page = await get<Page>(`${sessionPath(this.id)}/messages`, query, undefined, this.server);
    if (this.#before !== before) return; // The history begins elsewhere by now.
    this.messages.value = [...page.messages, ...this.messages.peek()];
    this.#before = page.next;
    this.hasMore.value = page.next !== null;
  }
}

/** Return the id of the first message, without joining the lists of a view. */
function firstOf(view: View): string | undefined {
  return (view.finished[0] ?? view.live[0])?.id;
}
