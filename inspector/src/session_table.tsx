/** The table of sessions. Only the rows near the viewport exist: a list of any length has as many nodes. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { SessionSummary } from "./api";
import { StepMarks } from "./charts";
import { Age } from "./clock";
import { count, counted, duration, moment, money, shortCount, shortId } from "./format";
import { StatusSign } from "./icons";
import { isCut } from "./list_what_if";
import { go, sessionLink } from "./routes";
import type { SessionList } from "./session_list";
import "./styles/session_table.css";

const NARROW = matchMedia("(max-width: 720px)");
const ROW = { wide: 36, narrow: 60 };
// Rows outside the viewport, so that keys and quick scrolling find them.
const SPARE = 12;
const COLUMNS: [string, string][] = [
  ["column-state", "Status"], ["column-session", "Session and query"], ["column-why", "Why"],
  ["column-rule", "Deciding rule"], ["column-steps number", "Steps"], ["column-marks", "Each step"],
  ["column-tokens number", "Tokens"], ["column-cost number", "Cost"], ["column-active number", "Active"],
  ["column-age number", "Age"],
];

export function SessionTable({ list, hasWhatIf }: { list: SessionList; hasWhatIf: boolean }) {
  const table = useRef<HTMLTableElement>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const { from, to, height } = useWindow(body, list);
  const rows = list.slice(from, to);
  const { size } = list;
  useEffect(() => list.need(from, to));
  useEffect(() => {
    list.isBeingRead = () => {
      const main = document.getElementById("main")!;
      const shown = table.current;
      return main.scrollTop > (shown?.offsetTop ?? 0) || Boolean(body.current?.matches(":hover, :focus-within"));
    };
    return () => {
      list.isBeingRead = () => false;
    };
  }, [list]);
  const showNew = (): void => {
    list.release();
    const main = document.getElementById("main")!;
    main.scrollTop = Math.min(main.scrollTop, table.current?.closest<HTMLElement>(".card")?.offsetTop ?? 0);
  };
  return (
    <>
      {list.held.value > 0 && (
        <p class="held">
          <button class="button small primary" onClick={showNew}>Show {counted(list.held.value, "new session")}</button>
        </p>
      )}
      <table
        class="session-table" role="table" ref={table}
        aria-rowcount={list.hasMore ? -1 : size + 1} aria-busy={!list.isLoaded.value}
        onMouseLeave={() => list.isBeingRead() || list.release()}
      >
        <caption class="hidden-text">Sessions, newest first</caption>
        <thead role="rowgroup">
          <tr role="row">
            {COLUMNS.map(([name, text]) => <th key={name} role="columnheader" scope="col" class={name}>{text}</th>)}
          </tr>
        </thead>
        <tbody role="rowgroup" ref={body} style={{ "--row": `${height}px` }}>
          <Spacer height={from * height} />
          {rows.map((session, index) => session
            ? <Row key={session.agent_id} session={session} number={from + index + 2} hasWhatIf={hasWhatIf} />
            : <Blank key={`blank-${from + index}`} />)}
          {!list.isLoaded.value && Array.from({ length: 8 }, (_, index) => <Blank key={`first-${index}`} />)}
          <Spacer height={Math.max(0, size - to) * height + (list.hasMore ? height : 0)} />
        </tbody>
      </table>
    </>
  );
}

function Spacer({ height }: { height: number }) {
  return height > 0 ? <tr class="spacer" aria-hidden="true" style={{ height: `${height}px` }} /> : null;
}

function Blank() {
  return <tr class="blank" aria-hidden="true"><td colSpan={COLUMNS.length}><i /></td></tr>;
}

/** Return the numbers of the rows near the viewport; the place of the reader is kept in the list. */
function useWindow(
  body: { current: HTMLElement | null }, list: SessionList,
): { from: number; to: number; height: number } {
  const [shown, setShown] = useState({ from: 0, to: 60 });
  const [isNarrow, setNarrow] = useState(NARROW.matches);
  const isRestored = useRef(false);
  const height = isNarrow ? ROW.narrow : ROW.wide;
  useLayoutEffect(() => {
    const main = document.getElementById("main")!;
    const look = (): void => {
      if (!body.current) return;
      list.scrollTop = main.scrollTop;
      if (!list.isBeingRead()) list.release();
      const top = body.current.getBoundingClientRect().top - main.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(-top / height) - SPARE);
      const to = from + Math.ceil(main.clientHeight / height) + 2 * SPARE;
      setShown((before) => (before.from === from && before.to === to ? before : { from, to }));
    };
    const resize = (): void => {
      setNarrow(NARROW.matches);
      look();
    };
    // The way back from a session; with another filter one stays where one is.
    if (!isRestored.current) main.scrollTop = list.scrollTop;
    isRestored.current = true;
    look();
    const rows = body.current;
    main.addEventListener("scroll", look, { passive: true });
    // Focus scrolls a row into view at once, but the scroll event waits for a frame, and keys may be quicker.
    const follow = (): void => queueMicrotask(look);
    rows?.addEventListener("focusin", follow);
    addEventListener("resize", resize);
    return () => {
      main.removeEventListener("scroll", look);
      rows?.removeEventListener("focusin", follow);
      removeEventListener("resize", resize);
    };
  }, [list, height]);
  return { ...shown, height };
}

function Row({ session, number, hasWhatIf }: { session: SessionSummary; number: number; hasWhatIf: boolean }) {
  const link = sessionLink(session.agent_id);
  const query = session.last_query || session.title;
  const rule = session.status === "in_progress" ? "" : session.resolved_by ?? "";
  const cut = hasWhatIf && isCut(session.agent_id);
  const open = (event: MouseEvent): void => {
    if ((event.target as Element).closest("a, button") || getSelection()?.toString()) return;
    if (event.ctrlKey || event.metaKey) window.open(link, "_blank", "noopener");
    else go(link);
  };
  return (
    <tr data-row role="row" aria-rowindex={number} class={cut ? "would-be-cut" : ""} onClick={open}>
      <td role="cell" class="column-state"><StatusSign status={session.status} /></td>
      <td role="cell" class="column-session">
        <div>
          <a class="clip" href={link} title={session.agent_id}>{shortId(session.agent_id)}</a>
          {session.is_running && <span class="tag">LIVE</span>}
          {cut && <span class="tag would-cut">CUT</span>}
          <span class="query clip" title={query}>{query}</span>
        </div>
      </td>
      <td role="cell" class="column-why" title={session.reason ?? ""}>{whyText(session)}</td>
      <td role="cell" class="column-rule" title={rule}>{rule || <span class="quiet">Not decided yet</span>}</td>
      <td role="cell" class="column-steps number">
        {count(session.step_count)}
        {session.step_limit !== null && <span class="quiet"> / {count(session.step_limit)}</span>}
      </td>
      <td role="cell" class="column-marks"><StepMarks marks={session.step_marks} total={session.step_count} /></td>
      <td role="cell" class="column-tokens number" title={tokensText(session)}>
        {session.tokens_known ? "" : "≥ "}
        {session.tokens < 1_000_000 ? count(session.tokens) : shortCount(session.tokens)}
      </td>
      <td
        role="cell" class="column-cost number"
        title={session.cost === null ? "The price of the model is unknown" : ""}
      >
        {session.cost === null ? <span class="quiet">–</span> : money(session.cost)}
      </td>
      <td role="cell" class="column-active number">{duration(session.active_seconds)}</td>
      <td
        role="cell" class="column-age number quiet"
        title={`Started ${moment(session.started_at)}, changed ${moment(session.updated_at)}`}
      >
        <Age time={session.started_at} />
      </td>
    </tr>
  );
}

function tokensText({ tokens, tokens_known }: SessionSummary): string {
  return `${counted(tokens, "token")}${tokens_known ? "" : " or more: not every model call reported them"}`;
}

function whyText({ status, reason, is_running, pending }: SessionSummary): string {
  if (status === "in_progress") return is_running ? reason ?? "At work" : "Was at work; its runner is gone";
  if (status === "paused" && pending > 1) return `${counted(pending, "question")} wait for a person`;
  return reason ?? (status === "pending" ? "Not started yet" : "");
}
