// Runs the script of the page in the guide against a document made of plain objects, and prints what it shows.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [guide, library, scratch, input] = process.argv.slice(2);
const { histories, envelopes } = JSON.parse(readFileSync(input, "utf8"));

class Element {
  constructor(tag) {
    Object.assign(this, { tag, className: "", children: [], listeners: {} });
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  get lines() {
    if (this.children.every((child) => typeof child === "string")) {
      return this.children.length ? [`${this.tag}.${this.className}: ${this.children.join("")}`] : [];
    }
    return this.children.flatMap((child) => child.lines);
  }
}

const chat = new Element("main");
const form = Object.assign(new Element("form"), { question: { value: "" }, reset() {} });
const sources = [];
const posted = [];
Object.assign(globalThis, {
  document: {
    createElement: (tag) => new Element(tag),
    getElementById: (id) => ({ chat, ask: form })[id],
  },
  fetch: async (address, options) => {
    if (options) posted.push([address, options.method, options.body]);
    return { json: async () => histories.shift() };
  },
  EventSource: class {
    constructor(address) {
      sources.push(Object.assign(this, { address }));
    }
  },
});

const script = readFileSync(guide, "utf8").match(/<script type="module">\n([\s\S]*?)<\/script>/)[1];
writeFileSync(scratch, script.replace("./whyloop-ui/index.js", pathToFileURL(library).href));
await import(pathToFileURL(scratch));

const screens = [chat.lines];
form.question.value = "Which <b>versions</b>?";
form.listeners.submit({ preventDefault() {}, target: form });
screens.push(chat.lines);
for (const envelope of envelopes) {
  sources[0].onmessage({ data: JSON.stringify(envelope) });
  screens.push(chat.lines);
}
await new Promise(setImmediate);
screens.push(chat.lines);
console.log(JSON.stringify({ screens, posted, address: sources[0].address }));
