/** The keys of the inspector, and the dialog that lists them. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { go } from "./routes";
import { toggleTheme } from "./theme";

const KEYS: [string, string][] = [
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["/", "search"],
  ["← → ↑ ↓", "move in the ledger"],
  ["t", "light or dark"],
  ["g s, g a", "sessions, approvals"],
  ["Esc", "close, or back to the conversation"],
  ["?", "these keys"],
];

const isShown = signal(false);
let previous = "";

/** Act on keys, unless the reader is typing. */
export function listenToKeys(): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement | null;
    const isTyping = target?.closest?.("input, textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const key = previous === "g" ? `g ${event.key}` : event.key;
    previous = event.key;
    if (press(key)) event.preventDefault();
  });
}

function press(key: string): boolean {
  switch (key) {
    case "j":
      return moveRow(1);
    case "k":
      return moveRow(-1);
    case "/":
      document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
      return true;
    case "t":
      toggleTheme();
      return true;
    case "g s":
      go("#/sessions");
      return true;
    case "g a":
      go("#/approvals");
      return true;
    case "?":
      isShown.value = true;
      return true;
    default:
      return false;
  }
}

/** Focus the next row; a row is an element with `data-row`, whose link is focused. */
function moveRow(by: number): boolean {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  const link = row?.querySelector<HTMLElement>("a, button") ?? row;
  link?.focus();
  return rows.length > 0;
}

/** The list of keys. */
export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const open = isShown.value;
  useEffect(() => {
    if (open) dialog.current?.showModal();
  }, [open]);
  if (!open) return null;
  return (
    <dialog ref={dialog} onClose={() => (isShown.value = false)} aria-labelledby="keys-title">
      <h2 id="keys-title">Keyboard</h2>
      <dl class="keys">
        {KEYS.map(([key, effect]) => (
          <div key={key}><dt><kbd>{key}</kbd></dt><dd>{effect}</dd></div>
        ))}
      </dl>
      <footer><button class="button" onClick={() => dialog.current?.close()}>Close</button></footer>
    </dialog>
  );
}
