// SPDX-License-Identifier: Apache-2.0
// Runs the script of a page of ours in Node, on elements that do nothing, and prints an expression's value as JSON.
//
//   node run_page.js plan.html 'data.plans.length'

const fs = require("fs"), vm = require("vm");

/// Takes every call and every assignment; what is not set reads as a function that returns a thing like it.
function pliable(known = {}) {
  const target = Object.assign(() => {}, known);
  return new Proxy(target, {
    get: (_, name) => (name in target ? target[name] : name === Symbol.toPrimitive ? () => 0 : () => pliable()),
    set: (_, name, value) => { target[name] = value; return true; },
    apply: () => pliable(),
  });
}

const elements = new Map();
function element(id) {
  const made = {
    id, style: { setProperty: (name, value) => { made.style[name] = value; } }, dataset: {}, scrollLeft: 0, children: [], textContent: "", clientWidth: 1000, offsetWidth: 100, offsetHeight: 20,
    namespaceURI: "http://www.w3.org/2000/svg", handlers: {},
    getBoundingClientRect: () => ({ left: 0, top: 0, right: 1000, bottom: 800, width: 1000, height: 800 }),
    appendChild: (child) => { made.children.push(child); return child; },
    append: (...more) => made.children.push(...more),
    replaceChildren: () => { made.children = []; },
    addEventListener: (name, handler) => { made.handlers[name] = handler; },
    setPointerCapture: () => {}, click: () => {},
    getContext: () => pliable({ measureText: () => ({ width: 58 }) }),
    toBlob: (done) => done({}),
  };
  return made;
}
const byId = (id) => elements.get(id) || elements.set(id, element(id)).get(id);

const [, , file, expression] = process.argv;
const page = fs.readFileSync(file, "utf8");
const found = (pattern) => (pattern.exec(page) || [])[1];
byId("data").textContent = found(/<script type="application\/json" id="data">(.*?)<\/script>/s);
byId("plots").dataset.total = found(/id="plots"[^>]* data-total="(\d+)"/);
const script = found(/<script>\s*"use strict";\n(.*)<\/script>/s);
const root = element("");
const world = {
  document: { getElementById: byId, createElement: () => element(""), documentElement: root, body: element("") },
  window: { innerWidth: 1000, innerHeight: 800, devicePixelRatio: 2, addEventListener() {}, matchMedia: () => element("") },
  getComputedStyle: () => ({ getPropertyValue: (name) => (name.startsWith("--s") || name.startsWith("--l") ? "50%" : "#123456") }),
  requestAnimationFrame: (draw) => draw(),
  setTimeout() {}, Blob: class {}, URL: { createObjectURL: () => "", revokeObjectURL() {} },
};
const result = vm.runInNewContext(`"use strict";\n${script}\n;(${expression})`, world, { filename: file });
process.stdout.write(JSON.stringify({ drawn: root.dataset.drawn, result }));
