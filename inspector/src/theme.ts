/** Light and dark: as the system says, until the reader chooses. */

const KEY = "whyloop.theme";

/** Apply the choice of an earlier visit. */
export function applyTheme(): void {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

/** Switch to the other one, and keep that. */
export function toggleTheme(): void {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = document.documentElement.dataset.theme ?? (systemIsDark ? "dark" : "light");
  const next = shown === "dark" || isDark ? "light" : "dark";
  localStorage.setItem(KEY, next);
  applyTheme();
}
