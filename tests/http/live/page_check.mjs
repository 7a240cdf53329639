// Runs page.js over a small document that records what is made, against scripted answers.
//
// Arguments: the page's folder, which Node takes for modules; a JSON file: a list of
// [path prefix, status, body] per turn.
// Prints JSON: tags, attributes and texts that the page made, and what it asked for.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, answersPath] = process.argv.slice(2);
const turns = JSON.parse(fs.readFileSync(answersPath, "utf8"));
const made = { tags: [], attributes: [], asked: [], failures: [] };

class Text {
  constructor(text) {
    this.text = text;
  }
  get textContent() {
    return this.text;
  }
}

class Element {
  constructor(tag) {
    made.tags.push(tag);
    this.tag = tag;
    this.children = [];
    this.style = {};
    this.hidden = false;
    this.value = "";
    this.listeners = {};
    this.attributes = {};
    this.classList = { toggle: () => {} };
  }
  setAttribute(name, value) {
    if (typeof value !== "string") made.failures.push(`${name} is no text: ${value}`);
    made.attributes.push(name);
    this.attributes[name] = value;
  }
  getAttribute(name) {
    return this.attributes[name] ?? null;
  }
  append(...children) {
    for (const child of children) {
      if (!(child instanceof Element || child instanceof Text)) made.failures.push(`appended ${child}`);
    }
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  focus() {}
  get textContent() {
    return this.children.map((child) => child.textContent).join("");
  }
  set innerHTML(html) {
    made.failures.push(`HTML: ${html}`);
  }
}

const ids = [...fs.readFileSync(path.join(folder, "index.html"), "utf8").matchAll(/\sid="([^"]+)"/g)].map((match) => match[1]);
const elements = Object.fromEntries(ids.map((id) => [id, new Element("div")]));
made.tags.length = 0;
const document = {
  hidden: false,
  activeElement: null,
  body: new Element("body"),
  addEventListener: () => {},
  getElementById: (id) => elements[id] ?? made.failures.push(`no element ${id}`),
  createElement: (tag) => new Element(tag),
  createElementNS: (space, tag) => new Element(tag),
  createTextNode: (text) => new Text(text),
};
made.tags.length = 0;

const shown = [];
let turn = -1;
async function fetch(asked, options) {
  made.asked.push([asked, options.headers.Authorization ?? null]);
  if (asked === "/v1/cluster/live") turn += 1;
  const found = turns[Math.min(turn, turns.length - 1)].find(([prefix]) => asked.startsWith(prefix));
  if (!found) throw new TypeError("network");
  const [, status, body] = found;
  return { status, ok: status === 200, json: async () => body };
}

// Waits of the page: the first after each turn shows what was drawn, then the next turn begins.
function setTimeout(callback, milliseconds) {
  if (milliseconds >= 8000) return 0; // its patience with an answer
  take();
  if (turn + 1 < turns.length) setImmediate(callback);
  return 0;
}

function take() {
  const texts = Object.fromEntries(ids.map((id) => [id, elements[id].textContent]));
  const hidden = ids.filter((id) => elements[id].hidden);
  shown.push({ texts, hidden });
}

Object.assign(globalThis, { document, fetch, setTimeout, clearTimeout: () => {} });
await import(pathToFileURL(path.join(folder, "page.js")));
await new Promise((resolve) => setImmediate(resolve));
for (let i = 0; i < 200; i++) await new Promise((resolve) => setImmediate(resolve));
take();
if (elements["key-form"].hidden === false && elements["key-form"].listeners.submit) {
  elements.key.value = " secret ";
  elements["key-form"].listeners.submit({ preventDefault: () => {} });
  for (let i = 0; i < 200; i++) await new Promise((resolve) => setImmediate(resolve));
  take();
}
console.log(JSON.stringify({ ...made, shown, key: elements.key.value }));
