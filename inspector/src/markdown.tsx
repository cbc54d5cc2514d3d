/** Markdown as nodes. The texts of models are data: HTML in them is text, and nothing that they name is loaded. */

import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { CopyButton } from "./copy";
import { parse } from "./json";
import "./styles/markdown.css";

// Beyond these, a text is shown as it is: no text of a model makes the page slow.
const LONGEST = 100_000;
const DEEPEST = 12;

/** The Markdown of a text. While it grows, only its last block is drawn again. */
export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  if (!blocks)
    return (
      <div class="markdown">
        <p class="plain-text">{text}</p>
      </div>
    );
  return (
    <div class="markdown">
      {blocks.map((token, index) => (
        <Block key={index} token={token} />
      ))}
    </div>
  );
}

/** Return the blocks of a text; null if it is shown as it is. */
function blocksOf(text: string): Token[] | null {
  if (text.length > LONGEST) return null;
  const data = dataOf(text);
  if (data !== null) return [{ type: "code", raw: text, text: data, lang: "json" }];
  try {
    return new Lexer({ gfm: true, breaks: true }).lex(text).filter(({ type }) => type !== "space" && type !== "def");
  } catch {
    return null; // Nested so deeply that it cannot be read.
  }
}

/** Return JSON on several lines if the whole text is an object or a list, such as a typed output; else null. */
function dataOf(text: string): string | null {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    const data = parse(text);
    return isShallow(data) ? JSON.stringify(data, null, 2) : null;
  } catch {
    return null;
  }
}

/** Return whether data is nested no deeper than `DEEPEST`: each level indents all that is in it further. */
function isShallow(data: unknown, depth = 0): boolean {
  if (typeof data !== "object" || data === null) return true;
  return depth < DEEPEST && Object.values(data).every((each) => isShallow(each, depth + 1));
}

function Block({ token }: { token: Token }) {
  return useMemo(() => block(token, 0), [token.raw, token.type]);
}

function block(token: Token, depth: number): ComponentChildren {
  if (depth > DEEPEST) return token.raw;
  const blocks = (tokens: Token[] | undefined): ComponentChildren => tokens?.map((each) => block(each, depth + 1));
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "paragraph":
      return <p>{inlines(token.tokens, depth)}</p>;
    case "heading":
      return <p class={`heading level-${token.depth}`}>{inlines(token.tokens, depth)}</p>;
    case "code":
      return <Code text={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens)}</blockquote>;
    case "hr":
      return <hr />;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : decoded(token.text);
    case "html":
      return <p class="plain-text">{token.raw.trimEnd()}</p>;
    default:
      return inline(token, depth);
  }
}

function list(token: Tokens.List, depth: number) {
  const items = token.items.map((item, index) => (
    <li key={index}>
      {item.task && (
        <input type="checkbox" checked={!!item.checked} disabled aria-label={item.checked ? "done" : "to do"} />
      )}
      {item.tokens.filter(({ type }) => (type as string) !== "checkbox").map((each) => block(each, depth + 1))}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table, depth: number) {
  const cells = (row: Tokens.TableCell[], Tag: "th" | "td") =>
    row.map((cell, index) => (
      <Tag key={index} class={cell.align ?? ""}>
        {inlines(cell.tokens, depth)}
      </Tag>
    ));
  return (
    <div class="table" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>{cells(token.header, "th")}</tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>{cells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return tokens?.map((token) => inline(token, depth + 1));
}

function inline(token: Token, depth: number): ComponentChildren {
  if (depth > DEEPEST) return token.raw;
  switch (token.type) {
    case "strong":
      return <b>{inlines(token.tokens, depth)}</b>;
    case "em":
      return <em>{inlines(token.tokens, depth)}</em>;
    case "del":
      return <del>{inlines(token.tokens, depth)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "escape":
      return token.text;
    case "link":
      return link(token.href, inlines(token.tokens, depth) ?? token.text);
    case "image":
      return link(token.href, token.text || "image");
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : decoded(token.text);
    default:
      return token.raw;
  }
}

/** Return a link to a web page or a mail address; for any other address, its text and the address. */
function link(address: string, children: ComponentChildren) {
  if (!isSafe(address))
    return (
      <>
        {children} ({address})
      </>
    );
  return (
    <a class="link" href={address} target="_blank" rel="noopener noreferrer" title={address}>
      {children}
    </a>
  );
}

function isSafe(address: string): boolean {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(address).protocol);
  } catch {
    return false; // Relative: it would lead into this page.
  }
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** Return the text that entities stand for; it stays text. */
function decoded(text: string): string {
  return text.replace(
    /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,6})|#x([0-9a-f]{1,5}));/gi,
    (found, name, decimal, hex) => {
      if (name) return ENTITIES[name.toLowerCase()] ?? found;
      const code = parseInt(decimal ?? hex, decimal ? 10 : 16);
      return code > 31 && code < 0x110000 ? String.fromCodePoint(code) : found;
    },
  );
}

/** A block of code, which can be copied. */
export function Code({ text, language = "", label = "Code" }: { text: string; language?: string; label?: string }) {
  return (
    <figure class={language === "json" ? "code wrapped" : "code"}>
      <figcaption>
        <span>{language}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0} aria-label={language ? `${label}, ${language}` : label}>
        <code>{text}</code>
      </pre>
    </figure>
  );
}
