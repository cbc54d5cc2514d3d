/** Text as a person must see it who decides about it. */

// What nobody sees, but what can reverse, hide or split the text around it; tabs and line ends are visible.
const INVISIBLE =
  /([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}])/u;
const SCRIPTS = {
  Latin: "A-Za-z\\u00aa\\u00ba\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u02af\\u1d00-\\u1d25\\u1d2c-\\u1d5c\\u1e00-\\u1eff\\u2c60-\\u2c7f\\ua720-\\ua7ff\\uff21-\\uff3a\\uff41-\\uff5a",
  Greek: "\\u0370-\\u03ff\\u1d26-\\u1d2a\\u1f00-\\u1fff",
  Cyrillic: "\\u0400-\\u052f\\u1c80-\\u1c8f\\u1d2b\\u2de0-\\u2dff\\ua640-\\ua69f",
  Armenian: "\\u0531-\\u058f\\ufb13-\\ufb17",
};
const WORD = new RegExp(`[${Object.values(SCRIPTS).join("")}\\u0300-\\u036f]+`, "g");
const LETTERS = Object.entries(SCRIPTS).map(([name, letters]) => ({ name, letter: new RegExp(`[${letters}]`) }));

/**
 * Return the text with escapes for characters that reverse or hide text, and with a mark after each word of
 * Latin and Greek, Cyrillic or Armenian letters, which look alike. Of a text that it returned it changes nothing.
 * @type {typeof import("./index.js").reveal}
 */
export function reveal(text) {
  const parts = text.split(INVISIBLE);
  return parts.map((part, index) => (index % 2 ? escaped(part) : part.replace(WORD, marked))).join("");
}

/**
 * Return the text with escapes for characters that reverse or hide text. JSON means the same as before.
 * @type {typeof import("./index.js").escapeInvisible}
 */
export function escapeInvisible(text) {
  return text.split(INVISIBLE).map((part, index) => (index % 2 ? escaped(part) : part)).join("");
}

function escaped(char) {
  return Array.from({ length: char.length }, (_, at) => `\\u${char.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
}

function marked(word, at, text) {
  const scripts = LETTERS.filter(({ letter }) => letter.test(word)).map(({ name }) => name);
  const mark = `⟦mixes ${scripts.join(" and ")}⟧`;
  const isMixed = scripts.length > 1 && scripts[0] === "Latin";
  return isMixed && !text.startsWith(mark, at + word.length) ? word + mark : word;
}
