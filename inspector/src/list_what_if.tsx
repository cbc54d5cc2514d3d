/** What another limit would have done to the sessions of the list. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, queryText, type Amounts, type ApiError, type Limit, type Survey } from "./api";
import { SurveyCurve } from "./charts";
import { count, counted, duration, money } from "./format";
import type { Filters } from "./routes";
import { queryOf } from "./session_list";
import "./styles/list_what_if.css";

const MOST_SESSIONS = 1000;
const LIMITS: Limit["option"][] = ["max_steps", "max_tokens", "timeout", "cumulative_timeout", "max_cost"];

const survey = signal<Survey | null>(null);
const error = signal<ApiError | null>(null);
/** The value under the thumb; it is part of the address once the thumb rests. */
const chosen = signal<number | null>(null);
let asked = "";

/** Whether a run of a session would have been cut by the limit that is chosen. */
export function isCut(agentId: string): boolean {
  const below = survey.value?.cut_below[agentId];
  return below !== undefined && chosen.value !== null && chosen.value < below;
}

/** The slider; moving it asks nothing of the server. */
export function ListWhatIf({ filters, change }: { filters: Filters; change: (changes: Partial<Filters>) => void }) {
  const { limit, value } = filters;
  const query = queryText({ ...queryOf({ ...filters, since: "" }), since: filters.since, limit });
  useEffect(() => void load(filters, query), [query]);
  useEffect(() => {
    chosen.value = value === "" ? null : Number(value);
  }, [value, limit]);
  useEffect(() => clear, []);
  const found = survey.value?.limit === limit ? survey.value : null;
  return (
    <div class="list-what-if">
      <label class="limit">
        <b>What if</b>
        <select value={limit} onChange={(event) => change({ limit: event.currentTarget.value, value: "" })}>
          {LIMITS.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      {found && found.rows.length > 0 && <Slider found={found} settle={(next) => change({ value: next })} />}
      {found && <Result found={found} />}
      {!found && <p class="result quiet">{error.value ? error.value.message : "Judging the runs of the list …"}</p>}
      <button class="button small" onClick={() => change({ limit: "", value: "" })}>Close</button>
    </div>
  );
}

function clear(): void {
  asked = "";
  survey.value = null;
  chosen.value = null;
}

async function load(filters: Filters, query: string): Promise<void> {
  asked = query;
  error.value = null;
  try {
    const given = { ...queryOf(filters), limit: filters.limit, sessions: MOST_SESSIONS };
    const found = await get<Survey>("what-if", given);
    if (asked === query) survey.value = { ...found, rows: effective(found.rows) };
  } catch (cause) {
    if (asked === query) error.value = cause as ApiError;
  }
}

/** Return the values up to the first one that cuts nothing: all above it are the same. */
function effective(rows: Survey["rows"]): Survey["rows"] {
  const last = rows.findLastIndex(({ cut }) => cut > 0);
  return rows.slice(0, last + 2);
}

function Slider({ found, settle }: { found: Survey; settle: (value: string) => void }) {
  const at = rowAt(found);
  const safe = safeRow(found);
  return (
    <div class="slider">
      <SurveyCurve survey={found} chosen={at ?? found.rows.length - 1} safe={safe} />
      <input
        type="range" min={0} max={found.rows.length - 1} step={1} value={at ?? found.rows.length - 1}
        aria-label={`${found.limit} of the runs of the list`}
        aria-valuetext={at === null ? "as recorded" : amount(found.limit, found.rows[at]!.value)}
        onInput={(event) => (chosen.value = found.rows[Number(event.currentTarget.value)]?.value ?? null)}
        onChange={() => settle(String(chosen.value ?? ""))}
      />
    </div>
  );
}

/** Return the number of the row that is chosen: the last one that is not above the value. */
function rowAt({ rows }: Survey): number | null {
  const value = chosen.value;
  if (value === null) return null;
  const above = rows.findIndex((row) => row.value > value);
  return above === -1 ? rows.length - 1 : Math.max(0, above - 1);
}

/** Return the number of the row of the recommended value. */
function safeRow({ rows, recommended }: Survey): number | null {
  const first = recommended === null ? -1 : rows.findIndex(({ value }) => value >= recommended);
  return first === -1 ? null : first;
}

function Result({ found }: { found: Survey }) {
  const at = rowAt(found);
  const safe = safeRow(found);
  return (
    <p class="result" role="status">
      {found.runs === 0 && "No run of the list is recorded well enough to judge."}
      {found.runs > 0 && at === null && `Move the slider: ${counted(found.runs, "run")} judged.`}
      {found.runs > 0 && at !== null && <Sentence found={found} at={at} />}
      {safe !== null && safe !== at && found.runs > 0 && (
        <button class="link" onClick={() => (chosen.value = found.rows[safe]!.value)}>
          {amount(found.limit, found.rows[safe]!.value)} is the lowest that cuts no completed run
        </button>
      )}
    </p>
  );
}

function Sentence({ found, at }: { found: Survey; at: number }) {
  const row = found.rows[at]!;
  const parts = savedParts(row.saved, found.used);
  return (
    <>
      <b>{found.limit}={amount(found.limit, row.value)}</b> would have cut{" "}
      <b>{count(row.cut)} of {counted(found.runs, "run")}</b>
      {row.cut > 0 && <>, <span class={row.completed ? "t-f" : ""}>{completedText(row.completed, row.cut)}</span></>}
      {row.cut > 0 && parts.length > 0 && `, and saved ${parts.join(", ")}`}.
    </>
  );
}

function completedText(completed: number, cut: number): string {
  if (completed === 0) return "none of them completed";
  return completed === cut ? "all of them completed" : `${count(completed)} of them completed`;
}

function savedParts(saved: Amounts, used: Amounts): string[] {
  const share = (part: number | string | null, whole: number | string | null): string => {
    const all = Number(whole ?? 0);
    return part !== null && all > 0 ? ` (${Math.round((Number(part) / all) * 100)} %)` : "";
  };
  const parts: string[] = [];
  if (saved.tokens) parts.push(`${count(saved.tokens)} tokens${share(saved.tokens, used.tokens)}`);
  if (saved.cost !== null && Number(saved.cost) > 0) parts.push(`${money(saved.cost)}${share(saved.cost, used.cost)}`);
  if (parts.length === 0 && saved.steps) parts.push(`${counted(saved.steps, "step")}${share(saved.steps, used.steps)}`);
  return parts;
}

function amount(limit: string, value: number): string {
  if (limit.endsWith("timeout")) return duration(value);
  return limit === "max_cost" ? money(value) : count(value);
}
