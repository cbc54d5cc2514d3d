/** A session that was saved as a file: the page holds its data, and requests nothing. */

import type { Info, SentMessage, SessionState, Step, Trace, WholeStep } from "./api";
import { parse } from "./json";

type Stored = Step & {
  text: string | null;
  reasoning: string | null;
  request_sent: {
    instructions: string | null;
    tools: string | null;
    output: string | null;
    messages: ([number, number] | string)[];
    tool_choice: string | null;
    max_tokens: number | null;
    changed_by: string[];
    incomplete: boolean;
  };
};

interface Saved {
  format: 1;
  saved_at: string;
  info: Info;
  state: SessionState;
  trace: Trace;
  messages: { messages: unknown[] };
  steps: Stored[];
  /** All messages as models read them; requests have ranges of them. */
  sent: SentMessage[];
  /** Other parts of requests, by their hashes. */
  texts: Record<string, unknown>;
}

/** The data in the page; null if it was sent by a server. */
export const saved: Saved | null = read();

function read(): Saved | null {
  const element = document.getElementById("whyloop-saved");
  return element ? (parse(element.textContent ?? "null") as Saved) : null;
}

/** Return what a server would answer; undefined if the file does not have it. */
export function savedAnswer(path: string): unknown {
  if (!saved) return undefined;
  const [address = ""] = path.split("?");
  const [, , what, index] = address.split("/");
  if (address === "info") return saved.info;
  if (what === undefined) return saved.state;
  if (what === "trace" || what === "messages") return saved[what];
  const step = what === "steps" ? saved.steps[Number(index) - 1] : undefined;
  return step && wholeStep(step, saved);
}

function wholeStep(step: Stored, { sent, texts }: Saved): WholeStep {
  const { instructions, tools, output, messages, ...options } = step.request_sent;
  const found = messages.flatMap((place) =>
    typeof place === "string" ? [texts[place] as SentMessage] : sent.slice(...place),
  );
  const text = (hash: string | null): unknown => (hash === null ? null : (texts[hash] ?? null));
  return {
    ...step,
    request_sent: {
      ...options,
      messages: found.filter(Boolean),
      message_count: found.length,
      instructions: text(instructions) as string | null,
      tools: text(tools) as never,
      output: text(output),
    },
  };
}
