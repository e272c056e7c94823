// The box that goes to any page, topic or table, and the list of keys. Loaded when first asked for.
import { render } from "../vendor/preact.js";
import { api, twin } from "./live.js";
import { flipTheme, html, Icon, PAGES, useEffect, useRef, useState } from "./parts.js";

/** @typedef {{icon: string, text: string, kind: string, go: () => void}} Place */

const place = document.createElement("div");
document.body.append(place);
/** @type {Element|null} */
let before = null;

/** Show a dialog; whoever had the focus gets it back. @param {any} view */
function show(view) {
  before = document.activeElement;
  render(view, place);
}

function close() {
  render(null, place);
  if (before instanceof HTMLElement) before.focus();
}

/** @param {string} path */
const to = (path) => () => location.assign(path);
const deeds = () => import("./deeds.js");

/** What can be done on this page: its buttons that may be pressed. @returns {Place[]} */
const here = () => [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll('main .btn:not([aria-disabled="true"])'))].map((button) => ({
  icon: "play", text: button.getAttribute("aria-label") ?? (button.textContent ?? "").trim(), kind: "here", go: () => button.click(),
}));

/** @returns {Place[]} */
const fixed = () => [
  ...PAGES.map(([, href, icon, label]) => ({ icon, text: label, kind: "page", go: to(href) })),
  { icon: "send", text: "Publish a record", kind: "do", go: () => deeds().then((module) => module.publish("")) },
  { icon: "plus", text: "New topic", kind: "do", go: () => deeds().then((module) => module.newTopic()) },
  { icon: "sun", text: "Switch light and dark", kind: "do", go: flipTheme },
  { icon: "link", text: "Copy the address of this view", kind: "do", go: () => navigator.clipboard?.writeText(location.href) },
  { icon: "code", text: "This page as JSON", kind: "do", go: () => location.assign(`${location.pathname}?format=json`) },
  { icon: "info", text: "Keys", kind: "do", go: openKeys },
];

/** Topics and tables whose names begin like this, asked of the server: there may be 100,000. @param {string} text @returns {Promise<Place[]>} */
async function found(text) {
  const prefix = encodeURIComponent(text), none = { data: null };
  // A server without a warehouse would refuse to list its tables.
  const hasTables = twin.peek()?.sections.nav?.tables != null;
  const [topics, tables] = await Promise.all([api("GET", `/v0/topics?page_size=8&prefix=${prefix}`), hasTables ? api("GET", `/v0/tables?page_size=8&prefix=${prefix}`) : none]);
  return [
    ...(topics.data?.topics ?? []).map((/** @type {any} */ row) => ({ icon: row.type === "queue" ? "inbox" : "list-tree", text: row.topic, kind: row.type ?? "topic", go: to(`/${row.type === "queue" ? "queues" : "topics"}/${encodeURIComponent(row.topic)}`) })),
    ...(tables.data?.tables ?? []).map((/** @type {any} */ row) => ({ icon: "table-2", text: row.name, kind: "table", go: to(`/tables/${encodeURIComponent(row.name)}`) })),
  ];
}

function GoTo() {
  const box = useRef(/** @type {any} */ (null)), [text, setText] = useState(""), [at, setAt] = useState(0), [names, setNames] = useState(/** @type {Place[]} */ ([]));
  useEffect(() => box.current.showModal(), []);
  useEffect(() => {
    let late = false;
    const timer = setTimeout(() => found(text).then((places) => late || setNames(places)), 80);
    return () => {
      late = true;
      clearTimeout(timer);
    };
  }, [text]);
  const wanted = text.toLowerCase();
  const all = [...[...fixed(), ...(wanted ? here() : [])].filter((one) => one.text.toLowerCase().includes(wanted)), ...names];
  const shown = (wanted ? all : [...all.slice(0, PAGES.length), ...names, ...all.slice(PAGES.length, all.length - names.length)]).slice(0, 12);
  const go = (/** @type {Place|undefined} */ one) => {
    if (!one) return;
    close();
    one.go();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt(Math.max(0, Math.min(shown.length - 1, at + step)));
    }
    if (event.key === "Enter") go(shown[at]);
  };
  return html`<dialog class="goto" ref=${box} aria-label="Go to" onClose=${close} onClick=${(/** @type {any} */ event) => event.target === box.current && close()}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant="found-${at}" aria-label="Go to a topic, table or page, or do something" placeholder="Go to a topic, table or page, or do something" value=${text}
      onInput=${(/** @type {any} */ event) => { setText(event.target.value); setAt(0); }} onKeyDown=${key} />
    <ul id="found" role="listbox" aria-label="Found">${shown.map((one, i) => html`<li key=${one.kind + one.text} id="found-${i}" role="option" aria-selected=${i === at} onClick=${() => go(one)}><${Icon} name=${one.icon} /><span>${one.text}</span><span class="muted">${one.kind}</span></li>`)}</ul></dialog>`;
}

const KEYS = [["/ or Ctrl K", "go to anything"], ...PAGES.map(([, , , label, key]) => [`g ${key}`, label]), ["j k", "next and previous row"], ["Enter", "open"], ["Esc", "close"], ["space", "hold a live tail, go on"], ["?", "this list"]];

function Keys() {
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-label="Keys" onClose=${close}><div class="pad"><h2>Keys</h2><dl class="kv">${KEYS.map(([key, text]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl><div class="ends"><button class="btn" onClick=${close}>Close</button></div></div></dialog>`;
}

export const openGoTo = () => show(html`<${GoTo} key=${performance.now()} />`);
export const openKeys = () => show(html`<${Keys} key=${performance.now()} />`);
