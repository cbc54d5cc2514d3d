/** Dialogs: each action says what will happen before it does it. */

import { signal, type ReadonlySignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Action {
  title: string;
  /** What will happen, one sentence each. */
  effects: (string | ReadonlySignal<string>)[];
  /** The label of the button: that of the action, as far as its fields are filled in. */
  button: string | ReadonlySignal<string>;
  /** More fields of the dialog. */
  children?: ComponentChildren;
  /** Why the fields do not allow it yet; "" if they do. */
  blocked?: ReadonlySignal<string>;
  isWide?: boolean;
  /** Carry it out; what it throws is shown in the dialog. */
  run(): Promise<unknown>;
}

/** The action came too late: its error says what happened instead, and another attempt makes no sense. */
export class Overtaken extends Error {}

const asked = signal<Action | null>(null);

/** Ask for a confirmation, then carry an action out. */
export function confirm(action: Action): void {
  asked.value = action;
}

/** The dialog of the action that was asked for. */
export function Dialogs() {
  return asked.value && <ActionDialog key={asked.value.title} action={asked.value} />;
}

function ActionDialog({ action }: { action: Action }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [isOver, setOver] = useState(false);
  // Before the first paint, so that no key that one presses at once is lost.
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const close = (): void => {
    dialog.current?.close();
    asked.value = null;
  };
  const run = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await action.run();
      close();
    } catch (cause) {
      setProblem((cause as Error).message);
      setOver(cause instanceof Overtaken);
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} class={action.isWide ? "wide" : ""} onClose={close} aria-labelledby="dialog-title">
      <form onSubmit={run}>
        <h2 id="dialog-title">{action.title}</h2>
        {!isOver && <ul>{action.effects.map((effect, at) => <li key={at}>{effect}</li>)}</ul>}
        {!isOver && action.children}
        {problem && <p class={isOver ? "overtaken" : "problem"} role="alert">{problem}</p>}
        <footer>
          <button type="button" class="button" onClick={close}>{isOver ? "Close" : "Cancel"}</button>
          {!isOver && (
            <button type="submit" class="button primary" disabled={isBusy || Boolean(action.blocked?.value)}>
              {action.button}
            </button>
          )}
        </footer>
      </form>
    </dialog>
  );
}
