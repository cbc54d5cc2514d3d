/** The blocks of a conversation: questions, steps with their calls, and lines between them. */

import type { ReadonlySignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { shouldRenderContent, type Drawn, type UiMessage } from "whyloop-ui";
import { canRun, type Target } from "./actions";
import { may, type Info, type PendingCall, type Step } from "./api";
import { CallCard, Waiting, type Decide } from "./call";
import { counted, duration } from "./format";
import { approve, deny, edit } from "./decisions";
import { Icon } from "./icons";
import { Markdown } from "./markdown";
import { Countdown } from "./clock";
import { sessionLink } from "./routes";
import type { SessionData } from "./session_data";
import { callStatus, isSameBlock, stepKey, type Block } from "./transcript";

export interface Context {
  data: SessionData;
  info: Info | null;
  isAlone: boolean;
  steps: ReadonlySignal<Map<string, Step>>;
}

interface BlockProps {
  block: Block;
  context: Context;
  /** True if it lies after the end of a what-if. */
  isBeyond: boolean;
  /** True if a what-if ends after it. */
  isCut: boolean;
}

export function BlockView({ block, context, isBeyond, isCut }: BlockProps) {
  const { data, steps } = context;
  const step = steps.value.get(stepKey(block.executionId, block.number));
  const isHot = step !== undefined && data.hot.value === step.index;
  const point = (index: number | null) => () => {
    if (step) data.hot.value = index;
  };
  const content = useStable(block, step, context);
  return (
    <>
      <div
        class={`block ${isHot ? "hot" : ""} ${isBeyond ? "beyond" : ""}`}
        data-block={block.key}
        onMouseEnter={point(step?.index ?? null)}
        onMouseLeave={point(null)}
      >
        {content}
      </div>
      {isCut && <p class="what-if-end">What if: ended here</p>}
    </>
  );
}

/** Draw a block again only if its messages, its step or the open questions changed. */
function useStable(block: Block, step: Step | undefined, context: Context) {
  const questions = context.data.state.value?.pending_calls;
  const isOpen = step === undefined || step.completed_at === null;
  const kept = useRef<{ block: Block; inputs: unknown[]; drawn: ReturnType<typeof draw> } | null>(null);
  // Questions matter only to a step that is open.
  const inputs = [step, isOpen ? questions : null, context.info, isOpen ? context.data.isStopping.value : false];
  const before = kept.current;
  if (before && isSameBlock(before.block, block) && inputs.every((value, index) => value === before.inputs[index])) {
    return before.drawn;
  }
  kept.current = { block, inputs, drawn: draw(block, step, context) };
  return kept.current.drawn;
}

function draw(block: Block, step: Step | undefined, context: Context) {
  const drawn = block.drawn.map((each) => (
    <MessageView key={each.message.id} drawn={each} step={step} context={context} />
  ));
  if (block.kind !== "step") return drawn;
  return (
    <>
      <StepLine number={block.number!} step={step} context={context} />
      {drawn}
    </>
  );
}

function StepLine({ number, step, context }: { number: number; step: Step | undefined; context: Context }) {
  const shown = step?.index ?? number;
  const facts = step &&
    step.completed_at !== null && [
      step.usage.total ? counted(step.usage.total, "token") : "",
      duration(step.duration_ms / 1000),
    ];
  const name = step?.wrap_up ? `Step ${shown}, wrap-up` : `Step ${shown}`;
  return (
    <div class="step-heading">
      {step && !context.isAlone ? <a href={sessionLink(context.data.id, step.index)}>{name}</a> : <span>{name}</span>}
      <i />
      {facts && <span class="quiet">{facts.filter(Boolean).join(" · ")}</span>}
    </div>
  );
}

interface MessageProps {
  drawn: Drawn;
  step: Step | undefined;
  context: Context;
}

function MessageView({ drawn, step, context }: MessageProps) {
  const { message, calls } = drawn;
  if (message.role === "user") return <UserMessage message={message} />;
  if (message.role === "status") return <StatusLine message={message} context={context} />;
  const { reasoning, streaming, incomplete } = message.metadata ?? {};
  const isLive = step === undefined || step.completed_at === null;
  return (
    <>
      {reasoning && <Reasoning text={reasoning} isOpen={!!streaming && message.content === ""} />}
      {message.role === "tool" && <LoneResult message={message} />}
      {shouldRenderContent(message) && (
        <div class={`answer ${streaming ? "streaming" : ""}`}>
          <Markdown text={message.content} />
          {incomplete && <p class="quiet">The answer was interrupted here.</p>}
        </div>
      )}
      {calls.map(({ call, result }, index) => {
        const recorded =
          step?.tool_calls[index]?.id === call.id
            ? step.tool_calls[index]
            : step?.tool_calls.find(({ id }) => id === call.id);
        const question = questionOf(context, result, call.id);
        return (
          <CallCard
            key={call.id}
            call={call}
            result={result}
            recorded={recorded}
            step={step}
            question={question}
            status={callStatus(result, recorded, isLive)}
            decide={decideOf(context.data, context.info)}
          />
        );
      })}
    </>
  );
}

function UserMessage({ message }: { message: UiMessage }) {
  const files = message.metadata?.attachments ?? [];
  return (
    <div class="user-message">
      <h3>User</h3>
      <Markdown text={message.content} />
      {files.map((file, index) => (
        <p key={index} class="quiet">
          {file.type}: {file.name ?? file.url ?? file.media_type}
        </p>
      ))}
    </div>
  );
}

function Reasoning({ text, isOpen }: { text: string; isOpen: boolean }) {
  return (
    <details class="reasoning" open={isOpen}>
      <summary>Reasoning</summary>
      <p class="plain-text">{text}</p>
    </details>
  );
}

/** A result whose call is not in the history. */
function LoneResult({ message }: { message: UiMessage }) {
  const { tool_call_id: id = message.id, tool_name: name = "tool" } = message.metadata ?? {};
  return <CallCard call={{ id, name }} result={message} status={callStatus(message, undefined, false)} />;
}

/** A line about the run: what it does, waits for, or could not do. */
function StatusLine({ message, context }: { message: UiMessage; context: Context }) {
  const { status_type: type, retry, question_id: questionId, continuation, source } = message.metadata ?? {};
  if (questionId !== undefined) {
    const question = questionOf(context, message, null);
    return (
      question && (
        <div class="call waiting">
          <Waiting question={question} decide={decideOf(context.data, context.info)} since={message.timestamp} />
        </div>
      )
    );
  }
  if (type === "error") {
    return (
      <div class="error-line" role="alert">
        <Icon name="cross" />
        <span class="plain-text">{message.content}</span>
      </div>
    );
  }
  if (retry) {
    const wait = retry.until !== null ? <Countdown until={retry.until} /> : " now";
    return (
      <p class="status-line t-r">
        <Icon name="ring" />
        Retry {retry.attempt} of {retry.max}
        {wait}
      </p>
    );
  }
  if (type === "thinking") {
    const text = context.data.isStopping.value ? "Stopping…" : message.content;
    return text ? (
      <p class="status-line t-r">
        <Icon name="ring" class="turning" />
        {text}
      </p>
    ) : null;
  }
  // The card at the end says how the run ended.
  if (continuation || !message.content.trim()) return null;
  const about = source ? `${source.join(", ")} to the model: ` : "";
  return (
    <p class="status-line note-line quiet">
      <span class="plain-text">
        {about}
        {message.content}
      </span>
    </p>
  );
}

/** Return the open question that a message shows, with the arguments if the server has sent them. */
function questionOf({ data }: Context, message: UiMessage | null, callId: string | null): PendingCall | null {
  const { question_id: id, question = "", tool_name: tool = null } = message?.metadata ?? {};
  if (id === undefined) return null;
  const asked = data.state.value?.pending_calls.find((each) => each.id === id);
  return asked ?? { id, tool: callId === null ? null : tool, tool_call_id: callId, arguments: null, question };
}

/** Return what a person may decide here; null if nothing. */
export function decideOf(data: SessionData, info: Info | null): Decide | null {
  if (!may(info, "decide")) return null;
  const target: Target = {
    id: data.id,
    canRun: canRun(info),
    server: data.server,
    user: info?.user ?? null,
    done: () => void data.read(),
  };
  const others = (question: PendingCall): number =>
    data.state.value?.pending_calls.filter(({ id }) => id !== question.id).length ?? 0;
  return {
    approve: (question) => approve(target, question, others(question)),
    deny: (question) => deny(target, question, others(question)),
    edit: (question) => edit(target, question, others(question)),
  };
}
