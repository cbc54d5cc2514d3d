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
  const error = data.error.value;
  return (
    <div class="chat-page">
      {error?.status === 404 ? (
        <p class="session-error" role="alert">
          {error.message}
        </p>
      ) : (
        <Conversation data={data} info={info} isAlone />
      )}
    </div>
  );
}
