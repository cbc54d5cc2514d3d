/** The inspector: the frame around its pages, and the keys that work on each. */

import "./styles/base.css";
import "./styles/saved.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { may, own, readInfo, refused, setToken, type Info } from "./api";
import { Approvals } from "./approvals";
import { ChatPage } from "./chat_page";
import { Compare } from "./compare";
import { Dialogs } from "./dialogs";
import { moment } from "./format";
import { Icon } from "./icons";
import { connection, reconnect } from "./live";
import { waiting, watchQuestions } from "./questions";
import { decode, route, type Route } from "./routes";
import { saved } from "./saved";
import { SessionPage } from "./session";
import { Sessions } from "./sessions";
import { Help, listenToKeys } from "./shortcuts";
import { applyTheme, toggleTheme } from "./theme";

const info = signal<Info | null>(null);

async function loadInfo(): Promise<void> {
  // Without an answer each page says what is wrong; a refusal has set `refused`.
  info.value = (await readInfo(own, true)) ?? info.peek();
}

function App() {
  // Again with each connection: the server may be another one after a restart.
  const { state } = connection.value;
  useEffect(() => {
    if (info.peek() === null || state === "live") void loadInfo();
  }, [state]);
  useEffect(() => (saved ? undefined : watchQuestions()), []);
  const title = titleOf(route.value);
  useEffect(() => void (saved || (document.title = title)), [title]);
  if (refused.value) return <SignIn />;
  return (
    <>
      <a class="skip" href="#main">Skip to the content</a>
      <TopBar />
      <main id="main">{page(route.value)}</main>
      <Dialogs />
      <Help />
    </>
  );
}

/** The title of the tab: what it shows, and before it how many questions wait. */
function titleOf(current: Route): string {
  const names = { sessions: "Sessions", approvals: "Approvals", compare: "Compare" };
  const name = current.page === "session" || current.page === "chat" ? current.id : names[current.page];
  return `${waiting.value ? `(${waiting.value}) ` : ""}${name} · whyloop`;
}

function page(current: Route) {
  switch (current.page) {
    case "sessions":
      return <Sessions filters={current.filters} info={info.value} />;
    case "approvals":
      return <Approvals info={info.value} />;
    case "session":
      return <SessionPage key={current.id} id={current.id} step={current.step} info={info.value} />;
    case "chat":
      return <ChatPage key={current.id} id={current.id} info={info.value} />;
    case "compare":
      return <Compare left={current.left} right={current.right} />;
  }
}

function TopBar() {
  const current = route.value.page;
  const link = (name: string, href: string, pages: string[], badge?: number) => (
    <a href={href} aria-current={pages.includes(current) ? "page" : undefined}>
      {name}
      {badge ? <span class="count">{badge}</span> : null}
    </a>
  );
  return (
    <header class="top">
      <a class="brand" href="#/sessions" aria-label="whyloop"><Icon name="logo" /><span>whyloop</span></a>
      {!saved && (
        <nav aria-label="Pages">
          {link("Sessions", "#/sessions", ["sessions", "session"])}
          {link("Approvals", "#/approvals", ["approvals"], waiting.value)}
          {may(info.value, "inspect") && link("Compare", "#/compare", ["compare"])}
        </nav>
      )}
      <span class="space" />
      {saved ? <span class="small-text quiet">Saved {moment(saved.saved_at)}</span> : <ConnectionSign />}
      <button class="key" aria-label="Keyboard shortcuts" onClick={() => dispatchEvent(new KeyboardEvent("keydown", { key: "?" }))}>?</button>
      <button class="plain" aria-label="Switch between light and dark" onClick={toggleTheme}><Icon name="theme" /></button>
    </header>
  );
}

function ConnectionSign() {
  const { state } = connection.value;
  const store = info.value?.store ?? "";
  const text = { live: "Live", connecting: "Connecting", lost: "Connection lost, trying again", refused: "Not signed in" }[state];
  return (
    <span class={`connection ${state}`} role="status">
      <i />
      <span>{text}{store && state === "live" ? `, ${store}` : ""}</span>
      {state === "lost" && <button class="button small" onClick={reconnect}>Try now</button>}
    </span>
  );
}

function SignIn() {
  const submit = (event: Event): void => {
    event.preventDefault();
    setToken(String(new FormData(event.target as HTMLFormElement).get("token")));
    location.reload();
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={submit}>
        <h1>whyloop</h1>
        <label for="token">This server needs a token, the one in $WHYLOOP_TOKEN.</label>
        <input id="token" name="token" type="password" autocomplete="current-password" required autofocus />
        <button class="button primary">Sign in</button>
      </form>
    </main>
  );
}

/** Take a token from the address, and remove it there: addresses are kept in histories and logs. */
function takeToken(): void {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  history.replaceState(null, "", "#/sessions");
  setToken(decode(given[1]!));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

takeToken();
applyTheme();
listenToKeys();
render(<App />, document.getElementById("app")!);
