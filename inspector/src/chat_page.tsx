/** A page with the conversation of a session and nothing else. */

import { useEffect, useMemo } from "preact/hooks";
import type { Info } from "./api";
import { Conversation } from "./conversation";
import { SessionData } from "./session_data";
import "./styles/chat.css";

export function ChatPage({ id, info }: { id: string; info: Info | null }) {
  const data = useMemo(() => new SessionData(id), [id]);
  useEffect(() => {
    data.open();
    return () => data.close();
  }, [data]);
  return (
    <div class="chat-page">
      <ChatView data={data} info={info} />
    </div>
  );
}

/** A conversation, or why there is none. */
export function ChatView({ data, info }: { data: SessionData; info: Info | null }) {
  const error = data.error.value;
  return (
    <>
      {error && (
        <p class="session-error" role="alert">
          {error.message}
        </p>
      )}
      {error?.status !== 404 && <Conversation data={data} info={info} isAlone />}
    </>
  );
}
