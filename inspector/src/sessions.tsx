/** The list of sessions: newest first, live, with what waits for a person first. */

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, may, readInfo, type Info, type Stats } from "./api";
import { WaitingCard } from "./approvals";
import { DecidedBy, StopReasons } from "./charts";
import { count, counted } from "./format";
import { Icon } from "./icons";
import { ListWhatIf } from "./list_what_if";
import { onListChange } from "./live";
import { changedFilters, go, goInPlace, NO_FILTERS, sessionsLink, type Filters } from "./routes";
import { isFiltered, labelText, queryOf, SessionList } from "./session_list";
import { SessionTable } from "./session_table";
import { Trouble } from "./trouble";
import "./styles/sessions.css";

const DAYS = 14;
// Counting a large store takes a while, and is done so much less often.
const BETWEEN_STATS = 2000;
const STATS_SHARE = 10;
const WHILE_TYPING = 200;
const STATUSES = [
  ["", "All"], ["in_progress", "Running"], ["paused", "Paused"], ["completed", "Completed"], ["stopped", "Stopped"],
  ["failed", "Failed"],
] as const;
const STOP_REASONS = [
  "completed", "steps_limit", "token_limit", "time_limit", "retry_limit", "error", "finish_reason", "guard",
  "user_requested",
];
const TIMES = [
  ["", "Any time"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"],
] as const;

const FILTER_WORDS: [keyof Filters, string][] = [
  ["search", "search"], ["status", "status"], ["stop_reason", "stop reason"], ["resolved_by", "rule"],
  ["metadata", "metadata"], ["since", "time"],
];

/** The list that was shown last: on the way back from a session it is there at once, where one left it. */
let kept: SessionList | null = null;

const stats = signal<Stats | null>(null);
/** The rules as they decided without the filter by rule, so that one can choose another. */
const rules = signal<Stats["rules"]>([]);

/** The page. The filters are those of the address, so a link shows the same list. */
export function Sessions({ filters, info }: { filters: Filters; info: Info | null }) {
  const list = useShown(useList(filters));
  const change = (changes: Partial<Filters>): void => go(changedFilters(changes));
  const changeInPlace = (changes: Partial<Filters>): void => goInPlace(changedFilters(changes));
  const clear = (): void => go(sessionsLink());
  const problem = list.error.value;
  const isEmpty = list.isLoaded.value && list.size === 0 && !problem;
  if (isEmpty && !isFiltered(filters)) return <NoSessions store={info?.store} />;
  return (
    <div class="page sessions">
      <header class="page-head">
        <h1>Sessions</h1>
        <span class="quiet small-text">{stats.value && headline(stats.value, isFiltered(filters))}</span>
      </header>
      <Cards filters={filters} info={info} change={change} />
      <section class="card list" aria-label="List of sessions">
        <FilterBar filters={filters} change={change} list={list} info={info} />
        {filters.limit && may(info, "inspect") && <ListWhatIf filters={filters} change={changeInPlace} />}
        {problem && <Trouble problem={problem} what="The sessions" retry={() => list.refresh()} clear={clear} />}
        {isEmpty
          ? <NoMatch filters={filters} change={change} />
          : <SessionTable list={list} hasWhatIf={filters.limit !== ""} />}
      </section>
    </div>
  );
}

function Cards({ filters, info, change }: {
  filters: Filters; info: Info | null; change: (changes: Partial<Filters>) => void;
}) {
  return (
    <div class="cards">
      <WaitingCard info={info} />
      {may(info, "inspect") && <Statistics filters={filters} change={change} />}
    </div>
  );
}

function Statistics({ filters, change }: { filters: Filters; change: (changes: Partial<Filters>) => void }) {
  return (
    <>
      <section class="card" aria-labelledby="reasons-title">
        <header>
          <h2 id="reasons-title">Stop reasons</h2><span class="quiet small-text">per day, {DAYS} days</span>
        </header>
        {stats.value && <StopReasons days={stats.value.days} />}
      </section>
      <section class="card" aria-labelledby="rules-title">
        <header><h2 id="rules-title">Decided by</h2><span class="quiet small-text">click to filter</span></header>
        {stats.value && (
          <DecidedBy
            rules={rules.value} chosen={filters.resolved_by} choose={(resolved_by) => change({ resolved_by })}
          />
        )}
      </section>
    </>
  );
}

function headline({ total, statuses, waiting }: Stats, filtered: boolean): string {
  const parts = [
    statuses.in_progress ? `${count(statuses.in_progress)} running` : "",
    waiting ? `${count(waiting)} waiting for a person` : "",
  ].filter(Boolean);
  const found = `${counted(total, "session")}${filtered ? " match" + (total === 1 ? "es" : "") : ""}, newest first.`;
  return parts.length ? `${found} ${parts.join(", ")}.` : found;
}

/** Return the list for filters, kept current while it is shown. */
function useList(filters: Filters): SessionList {
  const key = sessionsLink({ ...filters, limit: "", value: "" });
  const ref = useRef<{ key: string; list: SessionList } | null>(null);
  if (ref.current?.key !== key) {
    const keptKey = kept && sessionsLink({ ...kept.filters, limit: "", value: "" });
    ref.current = { key, list: kept && keptKey === key ? kept : new SessionList(filters) };
  }
  const { list } = ref.current;
  // Before the first paint, so that the rows are on their way while the page is drawn.
  useLayoutEffect(() => {
    kept = list;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const readStats = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void loadStats(filters);
      }, Math.max(BETWEEN_STATS, STATS_SHARE * statsTook));
    };
    const stopListening = onListChange((changed, deleted) => {
      // An empty change begins a connection: what happened before it is unknown.
      if (changed.length + deleted.length === 0) void list.refresh();
      else list.update(changed, deleted);
      readStats();
    });
    // The rows first: counting a large store takes longer than reading a page of it.
    void list.refresh().then(() => loadStats(filters));
    return () => {
      stopListening();
      clearTimeout(timer);
      list.close();
    };
  }, [list]);
  return list;
}

/** Return the list to show: the one before until this one is loaded, so that nothing flickers while one types. */
function useShown(list: SessionList): SessionList {
  const shown = useRef(list);
  if (list.isLoaded.value || list.error.value) shown.current = list;
  return shown.current;
}

let statsTook = 0;

async function loadStats(filters: Filters): Promise<void> {
  if (!may(await readInfo(), "inspect")) return;
  const started = performance.now();
  const given = { days: DAYS, offset_minutes: new Date().getTimezoneOffset() };
  try {
    const found = await get<Stats>("stats", { ...queryOf(filters), ...given });
    const others = queryOf({ ...filters, resolved_by: "" });
    const all = filters.resolved_by ? await get<Stats>("stats", { ...others, ...given }) : found;
    if (kept && kept.filters !== filters && sessionsLink(kept.filters) !== sessionsLink(filters)) return;
    stats.value = found;
    rules.value = all.rules;
    statsTook = performance.now() - started;
  } catch {
    // The list says what is wrong; old numbers are better than none.
  }
}

function FilterBar({ filters, change, list, info }: {
  filters: Filters; change: (changes: Partial<Filters>) => void; list: SessionList; info: Info | null;
}) {
  const known = rules.value.map(({ rule }) => rule);
  const rule = filters.resolved_by;
  const names = rule && !known.includes(rule) ? [...known, rule] : known;
  const [isOpen, setOpen] = useState(false);
  const given = FILTER_WORDS.filter(([name]) => !["search", "status"].includes(name) && filters[name]).length;
  return (
    <div class={isOpen ? "filters open" : "filters"} role="search">
      <SearchField filters={filters} />
      <button class="button more" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        Filters {given > 0 && <span class="count">{given}</span>}
      </button>
      <div class="segments" role="group" aria-label="Status">
        {STATUSES.map(([status, text]) => (
          <button key={status} aria-pressed={filters.status === status} onClick={() => change({ status })}>
            {text}
          </button>
        ))}
      </div>
      <Choice label="Stop reason" value={filters.stop_reason} choose={(stop_reason) => change({ stop_reason })}
        options={[["", "Any stop reason"], ...STOP_REASONS.map((reason): [string, string] => [reason, reason])]} />
      <Choice label="Rule" value={rule} choose={(resolved_by) => change({ resolved_by })}
        options={[["", "Any rule"], ...names.map((name): [string, string] => [name, name])]} />
      <Choice label="Time" value={filters.since} choose={(since) => change({ since })} options={TIMES} />
      <MetadataField filters={filters} change={change} list={list} />
      {!filters.limit && may(info, "inspect") && (
        <button class="button" onClick={() => change({ limit: "max_steps" })}>What if …</button>
      )}
    </div>
  );
}

function Choice({ label, value, options, choose }: {
  label: string; value: string; options: readonly (readonly [string, string])[]; choose: (value: string) => void;
}) {
  return (
    <select
      aria-label={label} value={value} class={value ? "chosen" : ""}
      onChange={(event) => choose(event.currentTarget.value)}
    >
      {options.map(([each, text]) => <option key={each} value={each}>{text}</option>)}
    </select>
  );
}

/** The search; it waits until one stops typing, and then takes the place of the address before. */
function SearchField({ filters }: { filters: Filters }) {
  const [text, setText] = useState(filters.search);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(filters.search), [filters.search]);
  const search = (value: string): void => goInPlace(changedFilters({ search: value.trim() }));
  const type = (value: string): void => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => search(value), WHILE_TYPING);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return (
    <label class="search">
      <Icon name="search" />
      <input
        type="search" placeholder="Search id, query, answer or reason" aria-label="Search sessions" maxLength={200}
        value={text}
        onInput={(event) => type(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
          if (event.key === "Enter") search(event.currentTarget.value);
        }}
      />
      <kbd aria-hidden="true">/</kbd>
    </label>
  );
}

/** A filter by metadata, with the entries of the sessions that are shown as suggestions. */
function MetadataField({ filters, change, list }: {
  filters: Filters; change: (changes: Partial<Filters>) => void; list: SessionList;
}) {
  const entries = list.slice(0, 50).flatMap((session) => Object.entries(session?.metadata ?? {}));
  const plain = entries.filter(([, value]) => typeof value !== "object");
  const known = [...new Set(plain.map(([key, value]) => labelText(key, value)))].slice(0, 50);
  return (
    <>
      <input
        class={filters.metadata ? "metadata chosen" : "metadata"} aria-label="Metadata" placeholder="key=value"
        title="Sessions with this metadata, such as team=sales, plan=pro" list="known-metadata"
        defaultValue={filters.metadata} key={filters.metadata}
        onChange={(event) => change({ metadata: event.currentTarget.value.trim() })}
      />
      <datalist id="known-metadata">{known.map((entry) => <option key={entry} value={entry} />)}</datalist>
    </>
  );
}

/** Which filter to remove when they leave nothing. */
function NoMatch({ filters, change }: { filters: Filters; change: (changes: Partial<Filters>) => void }) {
  const given = FILTER_WORDS.filter(([name]) => filters[name]);
  return (
    <div class="empty">
      <h2>No session matches {given.length === 1 ? "this filter" : "all of these filters"}</h2>
      <p>Remove {given.length === 1 ? "it" : "one"} to see more:</p>
      <div class="row">
        {given.map(([name, word]) => (
          <button key={name} class="button" onClick={() => change({ [name]: "" })}>
            <Icon name="close" /><span class="quiet">{word}</span> <span class="clip">{filters[name]}</span>
          </button>
        ))}
        {given.length > 1 && (
          <button class="button primary" onClick={() => change(NO_FILTERS)}>Clear all filters</button>
        )}
      </div>
    </div>
  );
}

const DEMO = "whyloop demo --serve";

/** How to make a first session. */
function NoSessions({ store = "whyloop.db" }: { store?: string | undefined }) {
  const talk = `whyloop chat --store ${store} --model local`;
  const code = `from whyloop import Session
from whyloop.stores import SqliteStore

async with SqliteStore("${store}") as store:
    session = await Session.open(store, agent, "customer-42", create=True)
    await session.send("Which leads are new?")`;
  return (
    <div class="page sessions">
      <header class="page-head"><h1>Sessions</h1></header>
      <section class="card empty first">
        <h2>No sessions yet</h2>
        <p>This page shows the sessions of {store}, and new ones as soon as they begin.</p>
        <h3>Keep the runs of your agent there</h3>
        <pre tabIndex={0}><code>{code}</code></pre>
        <h3>Or talk with a small model on this machine</h3>
        <pre tabIndex={0}><code>{talk}</code></pre>
        <h3>Or watch the runs of the demo</h3>
        <pre tabIndex={0}><code>{DEMO}</code></pre>
      </section>
    </div>
  );
}
