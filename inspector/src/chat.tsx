/**
 * The conversation of one session, for a page of your own.
 *
 *     import { mountChat } from "/agents/assets/chat.js";
 *     const chat = mountChat(document.getElementById("chat"), { url: "/agents/sessions/42" });
 *
 * It has its style with it, in a shadow tree: the style of the page and that of the chat do not touch each other.
 */

import "./styles/base.css";
import "./styles/chat.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { readInfo, type Info, type Server } from "./api";
import { ChatView } from "./chat_page";
import { Dialogs } from "./dialogs";
import { FetchedSource } from "./fetched_source";
import { SessionData } from "./session_data";

export interface ChatOptions {
  /** The address of the session, such as "/agents/sessions/42". */
  url: string;
  /** Sent with each request, such as `{ authorization: "Bearer …" }`; a function is asked each time. */
  headers?: Record<string, string> | (() => Record<string, string>);
}

export interface Chat {
  /** Remove the chat, and close its connection. */
  close(): void;
}

/** Show a session in an element, live. */
export function mountChat(element: Element, { url, headers = {} }: ChatOptions): Chat {
  const place = /^(.*\/)?sessions\/([^/?#]+)\/?$/.exec(url);
  if (!place) throw new TypeError(`invalid url ${url}: use the address of a session, such as "/agents/sessions/42"`);
  const server: Server = { base: place[1] ?? "", headers: typeof headers === "function" ? headers : () => headers };
  const data = new SessionData(decodeURIComponent(place[2]!), server, FetchedSource);
  const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const closeDialogs = showDialogs();
  data.open();
  render(
    <>
      <Style />
      <MountedChat data={data} />
    </>,
    root,
  );
  return {
    close: () => {
      data.close();
      closeDialogs();
      render(null, root);
    },
  };
}

let dialogs: { host: HTMLElement; users: number } | null = null;

/** Show the dialogs of all chats of the page, in an element of their own. */
function showDialogs(): () => void {
  if (!dialogs) {
    dialogs = { host: document.createElement("div"), users: 0 };
    dialogs.host.className = "whyloop-dialogs";
    document.body.append(dialogs.host);
    render(
      <>
        <Style />
        <Dialogs />
      </>,
      dialogs.host.attachShadow({ mode: "open" }),
    );
  }
  dialogs.users += 1;
  return () => {
    if (!dialogs || --dialogs.users > 0) return;
    render(null, dialogs.host.shadowRoot!);
    dialogs.host.remove();
    dialogs = null;
  };
}

function Style() {
  return <link rel="stylesheet" href={new URL("chat.css", import.meta.url).href} />;
}

function MountedChat({ data }: { data: SessionData }) {
  return <ChatView data={data} info={useInfo(data.server)} />;
}

const infos = new WeakMap<Server, ReturnType<typeof signal<Info | null>>>();

/** Return what the server allows; null before that is known. */
function useInfo(server: Server): Info | null {
  const known = infos.get(server) ?? signal<Info | null>(null);
  infos.set(server, known);
  useEffect(
    () =>
      void readInfo(server, true).then((info) => {
        known.value = info ?? known.peek();
      }),
    [server],
  );
  return known.value ?? null;
}
