/** A button that copies a text. */

import { useState } from "preact/hooks";

export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [state, setState] = useState(label);
  const copy = async (event: Event): Promise<void> => {
    event.stopPropagation();
    const isCopied = await write(typeof text === "string" ? text : text());
    setState(isCopied ? "Copied" : "Not copied");
    setTimeout(() => setState(label), 2000);
  };
  return (
    <button type="button" class="copy" onClick={copy}>
      {state}
    </button>
  );
}

async function write(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeSelected(text);
  }
}

/** Copy by selecting: pages that were not sent over HTTPS have no clipboard of their own. */
function writeSelected(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
