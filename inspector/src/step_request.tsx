/** What the model saw: instructions, messages and tools, as they were sent. */

import { useState } from "preact/hooks";
import { get, sessionPath, type SentMessage, type SentRequest, type WholeStep } from "./api";
import { argumentsText } from "./call";
import { CopyButton } from "./copy";
import { count, counted } from "./format";
import { Code } from "./markdown";
import type { SessionData } from "./session_data";

// The last messages are what a step is about; the others open on demand.
const LAST = 3;
const LONGEST = 5_000;
const MOST = 10_000;

export function RequestView({
  data,
  index,
  request: begun,
}: {
  data: SessionData;
  index: number;
  request: SentRequest | undefined;
}) {
  const [isWhole, setWhole] = useState(false);
  const [whole, setRequest] = useState<SentRequest | null>(null);
  const request = whole ?? begun;
  if (!request) return <p class="quiet">Loading the request</p>;
  const { messages, tools, message_count: total } = request;
  const hidden = isWhole ? 0 : Math.max(0, messages.length - LAST);
  const left = total - messages.length + hidden;
  const showAll = async (): Promise<void> => {
    setWhole(true);
    if (total === messages.length) return;
    const path = `${sessionPath(data.id)}/steps/${index}`;
    setRequest((await get<WholeStep>(path, { messages: MOST }, undefined, data.server)).request_sent ?? null);
  };
  return (
    <>
      <p class="quiet line">
        <span>
          As sent to the model: {counted(total, "message")}
          {tools ? `, ${counted(tools.length, "tool")}` : ""}.
        </span>
        <CopyButton label="Copy as JSON" text={() => JSON.stringify(request, null, 2)} />
      </p>
      {request.incomplete && <p class="quiet">A part of the request was not recorded, and is missing here.</p>}
      {request.changed_by?.length > 0 && <p class="quiet">Changed by {request.changed_by.join(", ")}</p>}
      {request.instructions && <Sent title="instructions" text={request.instructions} />}
      {left > 0 && (
        <button type="button" class="button small bare" onClick={() => void showAll()}>
          Show {isWhole ? "" : `${count(left)} `}earlier {left === 1 ? "message" : "messages"}
        </button>
      )}
      {messages.slice(hidden).map((message, index) => (
        <MessageSent key={hidden + index} message={message} />
      ))}
      {tools && tools.length > 0 && <Tools tools={tools} />}
      <Options request={request} />
    </>
  );
}

function MessageSent({ message }: { message: SentMessage }) {
  const calls = (message.tool_calls ?? []).map(({ name, arguments: given }) => `→ ${name} ${inOneLine(given)}`);
  const title = message.tool ? `${message.role} · ${message.tool}` : message.role;
  return <Sent title={title} text={[textOf(message), ...calls].filter(Boolean).join("\n")} />;
}

function inOneLine(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value ?? {});
}

/** Return the text of a message; parts that are not text by their type. */
function textOf({ content }: SentMessage): string {
  if (typeof content === "string" || !content) return content ?? "";
  return content.map((part) => part.text ?? `[${part.type ?? "part"}]`).join("\n");
}

function Sent({ title, text }: { title: string; text: string }) {
  const [isWhole, setWhole] = useState(false);
  const isLong = text.length > LONGEST && !isWhole;
  return (
    <article class="sent">
      <h4>{title}</h4>
      <p class="plain-text">{isLong ? text.slice(0, LONGEST) : text}</p>
      {isLong && (
        <button type="button" class="button small bare" onClick={() => setWhole(true)}>
          Show all {count(text.length)} characters
        </button>
      )}
    </article>
  );
}

function Tools({ tools }: { tools: NonNullable<SentRequest["tools"]> }) {
  return (
    <>
      <h3>Tools</h3>
      {tools.map((tool, index) => (
        <details key={index} class="sent-tool">
          <summary>
            <code>{tool.name ?? "tool"}</code> <span class="quiet">{tool.description}</span>
          </summary>
          <Code label={`Schema of ${tool.name ?? "the tool"}`} language="schema" text={argumentsText(tool)} />
        </details>
      ))}
    </>
  );
}

function Options({ request }: { request: SentRequest }) {
  const options: [string, unknown][] = [
    ["Tool choice", request.tool_choice],
    ["Most tokens", request.max_tokens],
    ["Output", request.output],
  ];
  const given = options.filter(([, value]) => value !== null && value !== undefined);
  if (given.length === 0) return null;
  return (
    <dl class="facts-list">
      {given.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{inOneLine(value)}</dd>
        </div>
      ))}
    </dl>
  );
}
