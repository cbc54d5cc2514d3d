/** An `EventSource` that sends headers; a browser's own cannot. It connects again by itself. */

import type { Source } from "whyloop-ui/session";
import { readEvents } from "./stream";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;

export class FetchedSource implements Source {
  readyState = 0;
  onopen: ((event: unknown) => unknown) | null = null;
  onmessage: ((event: unknown) => unknown) | null = null;
  onerror: ((event: unknown) => unknown) | null = null;
  #closing = new AbortController();

  constructor(url: string, { headers = {} }: { withCredentials: boolean; headers?: Record<string, string> }) {
    void this.#run(url, headers);
  }

  close(): void {
    this.readyState = 2;
    this.#closing.abort();
  }

  async #run(url: string, headers: Record<string, string>): Promise<void> {
    let last = "";
    const { signal } = this.#closing;
    for (let failures = 0; !signal.aborted; failures += 1) {
      let named = 0;
      const options = { headers: { ...headers, ...(last && { "last-event-id": last }) }, signal };
      try {
        const open = (): void => {
          failures = 0;
          this.readyState = 1;
          this.onopen?.({});
        };
        await readEvents(url, options, open, ({ id, data }) => {
          last = id || last;
          this.onmessage?.({ data });
        });
      } catch (cause) {
        const { status = 0, wait = 0 } = cause as { status?: number; wait?: number };
        named = wait;
        // The server refuses: trying again is up to the follower of the session, which asks for the history first.
        if (status >= 400 && status < 500) this.readyState = 2;
      }
      if (signal.aborted) return;
      if (this.readyState !== 2) this.readyState = 0;
      this.onerror?.({});
      if (this.readyState === 2) return;
      const wait = Math.min(FIRST_WAIT * 2 ** failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
      await new Promise((resolve) => setTimeout(resolve, named + wait));
    }
  }
}
