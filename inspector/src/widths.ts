/** Which of the layouts fits the window. */

import { signal, type ReadonlySignal } from "@preact/signals";

function matching(query: string): ReadonlySignal<boolean> {
  const media = matchMedia(query);
  const isMatching = signal(media.matches);
  media.addEventListener("change", () => (isMatching.value = media.matches));
  return isMatching;
}

/** The sliders are under the ledger. */
export const isNarrow = matching("(max-width: 1000px)");
export const isPhone = matching("(max-width: 720px)");
