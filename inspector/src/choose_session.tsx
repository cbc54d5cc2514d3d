/** A field that finds a session by a part of its id, its question or its answer. */

import { useSignal } from "@preact/signals";
import { useEffect, useId, useRef } from "preact/hooks";
import { get, type SessionPage, type SessionSummary } from "./api";
import { shortId, statusWord } from "./format";

const MOST = 12;
const PAUSE = 150;

export function ChooseSession({
  value,
  label,
  onChoose,
}: {
  value: string;
  label: string;
  onChoose: (id: string) => void;
}) {
  const typed = useSignal<string | null>(null);
  const found = useSignal<SessionSummary[]>([]);
  const place = useSignal(-1);
  const list = useId();
  const field = useRef<HTMLInputElement>(null);
  const leaving = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => search(typed.value, (sessions) => ((found.value = sessions), (place.value = -1))), [typed.value]);
  const isOpen = typed.value !== null && found.value.length > 0;
  const choose = (id: string): void => {
    typed.value = null;
    field.current?.blur();
    if (id !== value) onChoose(id);
  };
  const press = (event: KeyboardEvent): void => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      place.value = Math.max(0, Math.min(found.value.length - 1, place.value + by));
    } else if (event.key === "Enter") {
      const chosen = found.value[Math.max(0, place.value)]?.agent_id;
      if (chosen !== undefined) choose(chosen);
    } else if (event.key === "Escape") {
      event.preventDefault();
      typed.value = null;
    }
  };
  return (
    <div class="choose">
      <input
        ref={field}
        role="combobox"
        aria-label={label}
        aria-expanded={isOpen}
        aria-controls={list}
        aria-autocomplete="list"
        aria-activedescendant={isOpen && place.value >= 0 ? `${list}-${place.value}` : undefined}
        autocomplete="off"
        spellcheck={false}
        placeholder="Search a session"
        value={typed.value ?? value}
        onKeyDown={press}
        onFocus={({ currentTarget }) => (clearTimeout(leaving.current), (typed.value = ""), currentTarget.select())}
        onInput={({ currentTarget }) => (typed.value = currentTarget.value)}
        onBlur={() => (leaving.current = setTimeout(() => (typed.value = null), PAUSE))}
      />
      <ul id={list} role="listbox" aria-label={label} hidden={!isOpen}>
        {found.value.map((session, index) => (
          <li
            key={session.agent_id}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === place.value}
            onMouseDown={(event) => (event.preventDefault(), choose(session.agent_id))}
          >
            <b class="clip" title={session.agent_id}>{shortId(session.agent_id)}</b>
            <span class="quiet clip">{session.title}</span>
            <span class="quiet">{statusWord(session.status)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Look for sessions after a pause in the typing; return a function that gives it up. */
function search(text: string | null, show: (sessions: SessionSummary[]) => void): (() => void) | undefined {
  if (text === null) return undefined;
  const closing = new AbortController();
  const timer = setTimeout(() => {
    get<SessionPage>("sessions", { search: text.trim(), limit: MOST }, closing.signal).then(
      ({ sessions }) => show(sessions),
      () => {},
    );
  }, PAUSE);
  return () => {
    clearTimeout(timer);
    closing.abort();
  };
}
