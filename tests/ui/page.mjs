// Runs the script of the page in the guide against a document made of plain objects, and prints what it shows.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [guide, library, scratch, input] = process.argv.slice(2);
const { script } = JSON.parse(readFileSync(input, "utf8"));

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
const requests = [];
Object.assign(globalThis, {
  document: {
    createElement: (tag) => new Element(tag),
    getElementById: (id) => ({ chat, ask: form })[id],
  },
  fetch: (address, options) =>
    new Promise((resolve, reject) => {
      const kind = options?.method ?? "GET";
      requests.push({ told: [address, kind, options?.body ?? null], kind, resolve, reject });
    }),
  EventSource: class {
    constructor(address) {
      sources.push(Object.assign(this, { address }));
    }
  },
});

const page = readFileSync(guide, "utf8").match(/<script type="module">\n([\s\S]*?)<\/script>/)[1];
writeFileSync(scratch, page.replace("./whyloop-ui/index.js", pathToFileURL(library).href));
await import(pathToFileURL(scratch));

// What happens to the page, in this order; requests are counted from 0, those for the history apart from others.
const requested = (kind, number) => requests.filter((request) => request.kind === kind)[number];
const happens = {
  open: () => sources[0].onopen({}),
  ask: (question) => {
    form.question.value = question;
    form.listeners.submit({ preventDefault() {}, target: form });
  },
  hear: (envelope) => sources[0].onmessage({ data: JSON.stringify(envelope) }),
  history: (number, messages) => requested("GET", number).resolve({ ok: true, json: async () => messages }),
  refuse: (kind, number, status) => requested(kind, number).resolve({ ok: false, status }),
  lose: (kind, number) => requested(kind, number).reject(new TypeError("fetch failed")),
};

const screens = [];
for (const [name, ...details] of script) {
  happens[name](...details);
  await new Promise(setImmediate);
  screens.push(chat.lines);
}
const told = requests.map((request) => request.told);
console.log(JSON.stringify({ screens, requests: told, address: sources[0].address }));
