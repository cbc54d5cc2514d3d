/** The data of the list of sessions: pages that are read as one scrolls, kept current while one looks. */

import { batch, signal } from "@preact/signals";
import { get, type ApiError, type Query, type SessionPage, type SessionSummary } from "./api";
import { NO_FILTERS, type Filters } from "./routes";

const PAGE = 100;
// Pages further away than these are forgotten, and read again when one scrolls back: memory is bounded.
const MOST_PAGES = 20;
const BETWEEN_CHECKS = 500;
const BEFORE_RETRY = 3000;

/** Some rows, and the cursor that they come after. Rows that were forgotten are null, their number is not. */
interface Page {
  after: string | null;
  rows: readonly SessionSummary[] | null;
  size: number;
}

/** The sessions that run, as the live stream knows them: the store lists them as they were when they began. */
const running = new Map<string, SessionSummary>();

function newest(listed: SessionSummary): SessionSummary {
  const live = running.get(listed.agent_id);
  return live && Date.parse(live.updated_at) >= Date.parse(listed.updated_at) ? live : listed;
}

export class SessionList {
  readonly pages = signal<readonly Page[]>([]);
  /** Why the list cannot be read; null if it can. */
  readonly error = signal<ApiError | null>(null);
  readonly isLoaded = signal(false);
  /** How many new sessions are held back, so that rows do not move under the reader. */
  readonly held = signal(0);
  /** How far the reader has scrolled, for the way back from a session. */
  scrollTop = 0;
  /** Whether rows that move would disturb; the view sets it. */
  isBeingRead: () => boolean = () => false;

  #next: string | null = null;
  #heldPage: SessionPage | null = null;
  #closing = new AbortController();
  #loading = new Set<number>();
  /** How often the list was read anew. */
  #reading = 0;
  #checking: ReturnType<typeof setTimeout> | undefined;
  #retrying: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly filters: Filters) {}

  /** How many rows there are so far. */
  get size(): number {
    return this.pages.value.reduce((sum, page) => sum + page.size, 0);
  }

  get hasMore(): boolean {
    return this.#next !== null;
  }

  /** Read the first page, unless rows that are being read would move. */
  async refresh(): Promise<void> {
    try {
      const page = await this.#request(null);
      if (!this.isLoaded.peek() || !this.isBeingRead()) return this.#show(page);
      batch(() => {
        this.#heldPage = page;
        this.held.value = this.#replace(page.sessions).filter((session) => this.#mayBeNew(session)).length;
      });
    } catch (cause) {
      this.#fail(cause as ApiError);
    }
  }

  /** Show the sessions that were held back. */
  release(): void {
    if (this.#heldPage) this.#show(this.#heldPage);
  }

  close(): void {
    this.#closing.abort();
    this.#closing = new AbortController();
    this.#loading.clear();
    clearTimeout(this.#checking);
    clearTimeout(this.#retrying);
    this.#checking = undefined;
  }

  /** Return the rows from one number to another; null for those that were forgotten. */
  slice(from: number, to: number): (SessionSummary | null)[] {
    const found: (SessionSummary | null)[] = [];
    let first = 0;
    for (const page of this.pages.value) {
      const end = Math.min(to - first, page.size);
      for (let at = Math.max(from - first, 0); at < end; at += 1) found.push(page.rows?.[at] ?? null);
      first += page.size;
    }
    return found;
  }

  /** Read what is missing of these rows. */
  need(from: number, to: number): void {
    let first = 0;
    this.pages.peek().forEach((page, number) => {
      if (!page.rows && from < first + page.size && first < to) void this.#load(number);
      first += page.size;
    });
    if (to > first && this.#next !== null) void this.#load(this.pages.peek().length);
  }

  /** Take over changes: known rows change in their place, for others the beginning is read again. */
  update(changed: readonly SessionSummary[], deleted: readonly string[]): void {
    for (const session of changed) {
      if (session.status === "in_progress") running.set(session.agent_id, session);
      else running.delete(session.agent_id);
    }
    const unknown = this.#replace(changed);
    const isOver = changed.some((session) => !unknown.includes(session) && !this.#mayMatch(session));
    if (isOver || deleted.length > 0 || unknown.some((session) => this.#mayBeNew(session))) this.#check();
  }

  /** Replace the rows of these sessions; return the sessions that have none. */
  #replace(changed: readonly SessionSummary[]): SessionSummary[] {
    const unknown = new Map(changed.map((session) => [session.agent_id, session]));
    const newer = new Map(unknown);
    this.pages.value = this.pages.peek().map((page) => {
      if (!page.rows?.some(({ agent_id }) => newer.has(agent_id))) return page;
      for (const { agent_id } of page.rows) unknown.delete(agent_id);
      return { ...page, rows: page.rows.map((row) => newer.get(row.agent_id) ?? row) };
    });
    return [...unknown.values()];
  }

  #check(): void {
    this.#checking ??= setTimeout(() => {
      this.#checking = undefined;
      void this.refresh();
    }, BETWEEN_CHECKS);
  }

  #mayMatch(session: SessionSummary): boolean {
    const { status, stop_reason, resolved_by } = this.filters;
    return (!status || session.status === status)
      && (!stop_reason || session.stop_reason === stop_reason)
      && (!resolved_by || session.resolved_by === resolved_by);
  }

  /** Whether a session that is not shown would be in the first page. */
  #mayBeNew(session: SessionSummary): boolean {
    const rows = this.pages.peek()[0]?.rows;
    const last = rows && rows.length >= PAGE ? rows.at(-1) : null;
    return this.#mayMatch(session) && (!last || session.started_at > last.started_at);
  }

  #show(page: SessionPage): void {
    this.#reading += 1;
    this.#next = page.next;
    this.#heldPage = null;
    this.#loading.clear();
    batch(() => {
      this.pages.value = [{ after: null, rows: page.sessions, size: page.sessions.length }];
      this.held.value = 0;
      this.error.value = null;
      this.isLoaded.value = true;
    });
  }

  async #load(number: number): Promise<void> {
    if (this.#loading.has(number)) return;
    this.#loading.add(number);
    const reading = this.#reading;
    const known = this.pages.peek()[number];
    const after = known ? known.after : this.#next;
    try {
      const page = await this.#request(after);
      // The list was read anew meanwhile: this page belongs nowhere.
      if (reading !== this.#reading) return;
      this.#loading.delete(number);
      const loaded = { after, rows: page.sessions, size: page.sessions.length };
      if (!known) this.#next = page.next;
      this.pages.value = forgetFar(this.pages.peek().toSpliced(number, 1, loaded), number);
    } catch (cause) {
      if (reading === this.#reading) this.#loading.delete(number);
      this.#fail(cause as ApiError);
    }
  }

  async #request(after: string | null): Promise<SessionPage> {
    const query = { ...queryOf(this.filters), limit: PAGE, after };
    const page = await get<SessionPage>("sessions", query, this.#closing.signal);
    return { ...page, sessions: page.sessions.map(newest) };
  }

  #fail(cause: ApiError): void {
    if (cause.name === "AbortError") return;
    this.error.value = cause;
    clearTimeout(this.#retrying);
    if (cause.status === 0 || cause.status >= 500) {
      this.#retrying = setTimeout(() => void this.refresh(), BEFORE_RETRY);
    }
  }
}

function forgetFar(pages: Page[], near: number): Page[] {
  const half = MOST_PAGES / 2;
  return pages.map((page, number) => (Math.abs(number - near) > half && page.rows ? { ...page, rows: null } : page));
}

const HOURS: Record<string, number> = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };

/** Return the conditions of the API for filters. */
export function queryOf({ status, search, stop_reason, resolved_by, metadata, since }: Filters): Query {
  const hours = HOURS[since];
  const started_after = hours ? new Date(Date.now() - hours * 3_600_000).toISOString() : "";
  return { status, search, stop_reason, resolved_by, metadata: labelsOf(metadata), started_after };
}

/** "team=sales, order=17" → the JSON that the API takes; a value that is a number is compared as one. */
function labelsOf(text: string): string {
  const entries = text.split(",").map((entry) => entry.trim()).filter(Boolean);
  if (entries.length === 0) return "";
  return JSON.stringify(Object.fromEntries(entries.map((entry) => {
    const at = entry.indexOf("=");
    return at === -1 ? [entry, ""] : [entry.slice(0, at).trim(), labelValue(entry.slice(at + 1).trim())];
  })));
}

function labelValue(text: string): unknown {
  if (!/^(-?(0|[1-9]\d*)(\.\d+)?|true|false|".*")$/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Return an entry of the metadata as one filters by it. */
export function labelText(key: string, value: unknown): string {
  const isText = typeof value === "string" && labelValue(value) === value;
  return `${key}=${isText ? value : JSON.stringify(value)}`;
}

/** Whether filters hide sessions; a what-if does not. */
export function isFiltered(filters: Filters): boolean {
  const names = Object.keys(NO_FILTERS) as (keyof Filters)[];
  return names.some((name) => name !== "limit" && name !== "value" && filters[name]);
}
