/** The conversation of a session, live. */

import type { Info } from "./api";
import type { SessionData } from "./session_data";

export function Conversation({ data }: { data: SessionData; info: Info | null }) {
  return (
    <section class="card conversation" aria-label="Conversation">
      {data.view.value.messages.map((message) => <p key={message.id}>{message.role}: {message.content}</p>)}
    </section>
  );
}
