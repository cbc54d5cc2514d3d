/** What cannot be shown, why, and what to do. */

import type { ComponentChildren } from "preact";
import type { ApiError } from "./api";
import { Icon } from "./icons";
import "./styles/trouble.css";

/** Say that something could not be read. The server's sentence is text of the server, and shown as text. */
export function Trouble({ problem, what, retry, clear }: {
  problem: ApiError;
  /** Such as "The sessions". */
  what: string;
  retry: () => unknown;
  /** Remove the filters, which may be what is wrong. */
  clear?: (() => void) | undefined;
}) {
  const { title, todo } = adviceOn(problem, what);
  return (
    <section class="card failure" role="alert">
      <Icon name="cross" class="t-f" />
      <div>
        <h2>{title}</h2>
        <p>{todo}</p>
        {problem.status !== 0 && <p class="quiet small-text">The server said: {problem.message}</p>}
        <div class="row">
          <button class="button" onClick={retry}>Try again</button>
          {problem.status === 400 && clear && <button class="button" onClick={clear}>Clear all filters</button>}
        </div>
      </div>
    </section>
  );
}

function adviceOn({ status }: ApiError, what: string): { title: string; todo: ComponentChildren } {
  switch (status) {
    case 0:
      return {
        title: "The server cannot be reached",
        todo: <>Is <code>whyloop serve</code> running? This page connects again by itself when it is.</>,
      };
    case 400:
      return { title: `${what} cannot be read like this`, todo: "A filter in the address is not valid." };
    case 401:
      return { title: "Not signed in", todo: "Reload the page and enter the token of the server." };
    case 403:
      return { title: `You may not see this`, todo: "Ask for access, or sign in as another user." };
    case 503:
      return {
        title: "The store is not available",
        todo: "The database does not answer, or has too much to do. This page tries again every few seconds.",
      };
    default:
      return { title: `${what} could not be read`, todo: "The log of the server says why." };
  }
}
