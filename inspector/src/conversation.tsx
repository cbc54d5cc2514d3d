/** The conversation of a session, live. */

import { useComputed, useSignal, useSignalEffect, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { isRunning } from "whyloop-ui";
import type { Info } from "./api";
import { BlockView, type Context } from "./blocks";
import { Compose } from "./compose";
import { EndCard } from "./end_card";
import { statusWord } from "./format";
import { saved } from "./saved";
import type { SessionData } from "./session_data";
import { blocksOf, joinBlocks, stepsByKey, type Block } from "./transcript";
import "./styles/conversation.css";

// So many blocks are in the page at first, and at most; as many as this are added at an edge.
const FIRST = 30;
const MOST = 100;
const MORE = 20;
const NEAR = 400;

interface Props {
  data: SessionData;
  info: Info | null;
  /** True if only the conversation is shown: steps have no pages of their own then. */
  isAlone?: boolean;
}

export function Conversation({ data, info, isAlone = false }: Props) {
  const blocks = useComputed(() => {
    const { finished, live } = data.view.value;
    return joinBlocks(blocksOf(data.older.messages.value), blocksOf(finished), blocksOf(live));
  });
  const isAtEnd = useSignal(true);
  const toEnd = useRef(() => {});
  return (
    <section class="card conversation" aria-label="Conversation">
      <header>
        <h2>Conversation</h2>
        <span class="space" />
        {!isAtEnd.value && (
          <button type="button" class="button small bare" onClick={() => toEnd.current()}>
            Jump to the end
          </button>
        )}
      </header>
      <Scroller data={data} info={info} isAlone={isAlone} blocks={blocks} isAtEnd={isAtEnd} toEnd={toEnd} />
      {isAlone && (
        <span class="hidden-text" role="status">
          {data.trace.value && statusWord(data.trace.value.status)}
        </span>
      )}
      {data.trouble.value && (
        <p class="trouble" role="status">
          {data.trouble.value}. Trying again.
        </p>
      )}
      {!saved && <Compose data={data} info={info} onSend={() => toEnd.current()} />}
    </section>
  );
}

interface ScrollerProps extends Required<Props> {
  blocks: Signal<Block[]>;
  isAtEnd: Signal<boolean>;
  toEnd: { current: () => void };
}

/** The part of the blocks that is near what is visible, in a pane that follows the end. */
function Scroller({ data, info, isAlone, blocks, isAtEnd, toEnd }: ScrollerProps) {
  const pane = useRef<HTMLDivElement>(null);
  const anchor = useRef<{ key: string; top: number } | null>(null);
  // The first block that is in the page and the one after the last, by their keys; null is the end itself.
  const first = useSignal<string | null>(null);
  const last = useSignal<string | null>(null);
  const steps = useComputed(() => stepsByKey(data.steps.value, data.trace.value?.open_step ?? null));
  const all = blocks.value;
  const end = placeOf(all, last.value) ?? all.length;
  const start = Math.min(placeOf(all, first.value) ?? Math.max(0, end - FIRST), end);
  const cut = cutOf(data, all);

  const move = (from: number, to: number): void => {
    anchor.current = topOf(pane.current!);
    first.value =
      from <= 0 && !data.older.hasMore.value ? (all[0]?.key ?? null) : (all[Math.max(0, from)]?.key ?? null);
    last.value = to >= all.length ? null : all[to]!.key;
  };
  const scrolled = (): void => {
    const { scrollTop, scrollHeight, clientHeight } = pane.current!;
    const below = scrollHeight - scrollTop - clientHeight;
    isAtEnd.value = below < 32 && end === all.length;
    if (isAtEnd.value && end - start > MOST) move(end - FIRST, end);
    else if (scrollTop < NEAR && start > 0) move(start - MORE, Math.min(end, start - MORE + MOST));
    else if (scrollTop < NEAR && data.older.hasMore.value) {
      first.value ??= all[start]?.key ?? null;
      data.older.load().then(
        () => requestAnimationFrame(() => look.current()),
        () => {},
      );
    } else if (below < NEAR && end < all.length) move(Math.max(start, end + MORE - MOST), end + MORE);
  };
  const look = useRef(scrolled);
  look.current = () => pane.current && scrolled();
  toEnd.current = () => {
    anchor.current = null;
    first.value = last.value = null;
    isAtEnd.value = true;
    requestAnimationFrame(() => toBottom(pane.current));
  };
  useLayoutEffect(() => {
    if (!pane.current) return;
    if (isAtEnd.peek()) toBottom(pane.current);
    else if (anchor.current) restore(pane.current, anchor.current);
    anchor.current = null;
    // Without anything to scroll, the reader cannot ask for more by scrolling.
    if (pane.current.scrollHeight <= pane.current.clientHeight && (start > 0 || data.older.hasMore.peek())) scrolled();
  });
  useGrowth(pane, isAtEnd);
  // Show where a run would have ended.
  useEffect(() => {
    if (cut === null) return;
    isAtEnd.value = false;
    const at = all.findIndex(({ key }) => key === cut);
    if (at < start || at >= end) move(at - FIRST / 2, at + FIRST);
    requestAnimationFrame(() => pane.current?.querySelector(".what-if-end")?.scrollIntoView({ block: "center" }));
  }, [cut]);
  const context: Context = { data, info, isAlone, steps };
  const cutAt = cut === null ? Infinity : all.findIndex(({ key }) => key === cut);
  return (
    <div class="talk" ref={pane} onScroll={scrolled} tabIndex={0} role="region" aria-label="Messages">
      <div class="talk-content">
        {start === 0 && data.older.hasMore.value && <p class="quiet older">Loading earlier messages</p>}
        {all.slice(start, end).map((block, index) => (
          <BlockView
            key={block.key}
            block={block}
            context={context}
            isBeyond={start + index > cutAt}
            isCut={block.key === cut}
          />
        ))}
        {all.length === 0 && <Empty data={data} />}
        {end === all.length && <EndCard data={data} info={info} isAlone={isAlone} isBeyond={cut !== null} />}
      </div>
    </div>
  );
}

function Empty({ data }: { data: SessionData }) {
  const isLoaded = data.state.value !== null;
  return (
    <p class="quiet empty">
      {isLoaded && !isRunning(data.view.value) ? "No question has been asked yet." : "Loading the messages"}
    </p>
  );
}

/** Return the key of the block after which the run would have ended; null if nothing is left out. */
function cutOf(data: SessionData, blocks: Block[]): string | null {
  const answer = data.whatIf.value?.answer;
  const execution = data.trace.value?.executions?.at(-1)?.id;
  if (!answer || answer.stopped_at === null || execution === undefined) return null;
  const at = blocks.findLastIndex(
    ({ executionId, number }) => executionId === execution && number === answer.stopped_at,
  );
  return at === -1 || at === blocks.length - 1 ? null : blocks[at]!.key;
}

function placeOf(blocks: Block[], key: string | null): number | null {
  const place = key === null ? -1 : blocks.findIndex((block) => block.key === key);
  return place === -1 ? null : place;
}

function toBottom(pane: HTMLElement | null): void {
  if (pane) pane.scrollTop = pane.scrollHeight;
}

/** Return the first block that is visible, and where it is. */
function topOf(pane: HTMLElement): { key: string; top: number } | null {
  const edge = pane.getBoundingClientRect().top;
  for (const element of pane.querySelectorAll<HTMLElement>("[data-block]")) {
    const box = element.getBoundingClientRect();
    if (box.bottom > edge) return { key: element.dataset.block!, top: box.top };
  }
  return null;
}

/** Scroll so that a block is where it was before blocks were added above it. */
function restore(pane: HTMLElement, anchor: { key: string; top: number }): void {
  const element = pane.querySelector<HTMLElement>(`[data-block="${CSS.escape(anchor.key)}"]`);
  if (element) pane.scrollTop += element.getBoundingClientRect().top - anchor.top;
}

/** Stay at the end when the content or the pane changes its height by itself. */
function useGrowth(pane: { current: HTMLElement | null }, isAtEnd: Signal<boolean>): void {
  useEffect(() => {
    const observer = new ResizeObserver(() => isAtEnd.peek() && toBottom(pane.current));
    observer.observe(pane.current!);
    return () => observer.disconnect();
  }, []);
  useSignalEffect(() => {
    if (isAtEnd.value) toBottom(pane.current);
  });
}
