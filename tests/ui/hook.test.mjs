// The React hook. It runs in a folder that has React and the package.
import assert from "node:assert/strict";
import { test } from "node:test";

import { StrictMode, createElement, memo, version } from "react";
import { act, create } from "react-test-renderer";
import { useSession } from "whyloop-ui/react";

import { Platform, chunk, ended, question, started } from "./platform.mjs";

globalThis.IS_REACT_ACT_ENVIRONMENT = true;

/** A component that shows a session, and every result of the hook. */
class Screen {
  platform = new Platform();
  results = [];

  async show(url, mode = (element) => element) {
    const Chat = ({ address }) => {
      const session = useSession(address, this.options ?? this.platform.options);
      this.results.push(session);
      return session.view.messages.map(({ id, content }) => createElement("p", { key: id }, content));
    };
    this.mode = mode;
    this.Chat = Chat;
    await act(() => {
      this.root = create(mode(createElement(Chat, { address: url })));
    });
  }

  async change(url) {
    await act(() => this.root.update(this.mode(createElement(this.Chat, { address: url }))));
  }

  async history(...given) {
    await act(() => this.platform.history(...given));
  }

  async receive(...envelopes) {
    await act(() => this.platform.receive(...envelopes));
  }

  get texts() {
    const found = this.root.toJSON() ?? [];
    return [found].flat().map(({ children }) => children?.join("") ?? "");
  }

  get last() {
    return this.results.at(-1);
  }
}

test(`a component shows the session as it changes, in React ${version}`, async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  assert.deepEqual(screen.texts, []);
  await screen.history([question("Who?")], "e0:3");
  assert.deepEqual(screen.texts, ["Who?"]);
  await screen.receive(started(1), chunk("Hel"), chunk("lo", 1));
  assert.deepEqual(screen.texts, ["Who?", "Hello"]);
  assert.equal(screen.last.view.runs.at(-1).status, "in_progress");
  await screen.receive(ended(2));
  assert.equal(screen.last.view.runs.at(-1).status, "completed");
});

test("an envelope that changes nothing renders nothing", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await screen.history([question("Who?")]);
  await screen.receive(started(1));
  const renders = screen.results.length;
  await screen.receive(started(1));
  assert.equal(screen.results.length, renders);
});

test("envelopes that arrive together are rendered once", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await screen.history([question("Who?")]);
  await screen.receive(started(1));
  const renders = screen.results.length;
  await screen.receive(chunk("a"), chunk("b", 1), chunk("c", 2));
  assert.equal(screen.results.length, renders + 1);
  assert.deepEqual(screen.texts, ["Who?", "abc"]);
});

test("a message that did not change is the same object, so its component is not rendered again", async () => {
  const platform = new Platform();
  const rendered = [];
  const Message = memo(({ message }) => {
    rendered.push(message.content);
    return createElement("p", {}, message.content);
  });
  const Chat = () => {
    const { view } = useSession("/sessions/1", platform.options);
    return view.messages.map((message) => createElement(Message, { key: message.id, message }));
  };
  await act(() => create(createElement(Chat)));
  await act(() => platform.history([question("Who?")]));
  await act(() => platform.receive(started(1)));
  await act(() => platform.receive(chunk("Me")));
  assert.deepEqual(rendered, ["Who?", "Thinking…", "Me"]);
});

test("the connection is closed when the component is removed", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await screen.history([]);
  await act(() => screen.root.unmount());
  assert.equal(screen.platform.sources[0].readyState, 2);
});

test("in strict mode one connection is left", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1", (element) => createElement(StrictMode, {}, element));
  await screen.history([question("Who?")]);
  assert.deepEqual(screen.texts, ["Who?"]);
  assert.equal(screen.platform.sources.length, 1);
});

test("another address shows another session, and nothing of the one before", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await screen.history([question("One?")]);
  await screen.change("/sessions/2");
  assert.deepEqual(screen.texts, []);
  assert.equal(screen.platform.sources[0].readyState, 2);
  await screen.history([question("Two?")]);
  assert.deepEqual(screen.texts, ["Two?"]);
  assert.match(screen.platform.requests.at(-1).address, /^\/sessions\/2\//);
});

test("without an address there is no session", async () => {
  const screen = new Screen();
  await screen.show(null);
  assert.equal(screen.platform.requests.length, 0);
  screen.last.add({ content: "Who?" })();
  await screen.last.refresh();
  assert.deepEqual(screen.texts, []);
  await screen.change("/sessions/1");
  assert.equal(screen.platform.requests.length, 1);
});

test("a message of the user is shown at once, and removed if it could not be sent", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await screen.history([]);
  const { add } = screen.last;
  let remove;
  await act(() => {
    remove = add({ content: "Who?" });
  });
  assert.deepEqual(screen.texts, ["Who?"]);
  await act(() => remove());
  assert.deepEqual(screen.texts, []);
  assert.equal(screen.last.add, add, "the function stays the same");
});

test("an error is there until the next view, and is reported", async () => {
  const screen = new Screen();
  await screen.show("/sessions/1");
  await act(() => screen.platform.refuse(503));
  assert.equal(screen.last.error.message, "The history could not be loaded: the server answered 503");
  assert.deepEqual(screen.platform.errors, [screen.last.error.message]);
  await act(() => screen.platform.wait());
  await screen.history([question("Who?")]);
  assert.equal(screen.last.error, null);
});
