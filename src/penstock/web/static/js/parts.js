// The parts that every page is made of. They draw what they are given, and escape it by drawing it
// as text; nothing here asks the server.
import { h } from "../vendor/preact.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { effect, signal } from "../vendor/signals.js";
import htm from "../vendor/htm.js";
import { now, twin } from "./live.js";
import { clock, exact, look, span, UNKNOWN } from "./format.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = /** @type {any} */ (htm).bind(h);
export { useEffect, useRef, useState };

const ICONS = new URL("../vendor/icons.svg", import.meta.url).href;

/** id, address, icon, label, key after `g`, and whether a phone has no room for it. */
export const PAGES = /** @type {[string, string, string, string, string, boolean?][]} */ ([
  ["overview", "/", "gauge", "Overview", "o"],
  ["topics", "/topics", "list-tree", "Topics", "t"],
  ["queues", "/topics?type=queue", "inbox", "Queues", "q", true],
  ["pipeline", "/pipeline", "workflow", "Pipeline", "p"],
  ["tables", "/tables", "table-2", "Tables", "a"],
  ["entities", "/entities", "boxes", "Entities", "e", true],
  ["lake", "/lake", "database", "Lake", "l", true],
  ["cluster", "/cluster", "server", "Cluster", "c", true],
]);

const dark = matchMedia("(prefers-color-scheme: dark)");
export const theme = signal(document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => {
  if (!document.documentElement.dataset.theme) theme.value = dark.matches ? "dark" : "light";
});

export function flipTheme() {
  theme.value = theme.peek() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme.peek();
  localStorage.setItem("penstock.theme", theme.peek());
}

/** @type {{value: URLSearchParams, peek: () => URLSearchParams}} */
export const query = signal(new URLSearchParams(location.search));
addEventListener("popstate", () => (query.value = new URLSearchParams(location.search)));

/** Where these members of the address change; null removes one. @param {Record<string, string|number|null>} changes */
export function address(changes) {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, String(value));
  }
  const text = next.toString();
  return location.pathname + (text ? `?${text}` : "");
}

/** Change members of the address without asking the server. @param {Record<string, string|number|null>} changes */
export function setQuery(changes) {
  history.replaceState(null, "", address(changes));
  query.value = new URLSearchParams(location.search);
}

/** The value of a signal; the component draws again when it changes. @template T @param {{value: T, peek: () => T}} source @returns {T} */
export function use(source) {
  const [, draw] = useState(0), value = source.peek(), drawn = useRef(value);
  drawn.current = value;
  // It may have changed between drawing and this.
  useEffect(() => effect(() => {
    if (source.value !== drawn.current) draw((/** @type {number} */ n) => n + 1);
  }), [source]);
  return value;
}

/** A member of the address, and how to change it. @param {string} name @param {string} fallback @returns {[string, (value: string|null) => void]} */
export function useAddress(name, fallback = "") {
  const value = use(query).get(name) ?? fallback;
  return [value, (next) => setQuery({ [name]: next === fallback ? null : next })];
}

/** @param {{name: string, small?: boolean, cls?: string}} props */
export const Icon = ({ name, small, cls = "" }) => html`<svg class="icon ${small ? "s" : ""} ${cls}" aria-hidden="true"><use href="${ICONS}#${name}" /></svg>`;

/** @param {{kind?: string, icon?: string, children?: any, title?: string}} props */
export const Chip = ({ kind = "", icon, children, title }) => html`<span class="chip ${kind}" title=${title}>${icon && html`<${Icon} name=${icon} />`}${children}</span>`;

/** A state: its colour, its shape and its word. @param {{of: string}} props */
export function State({ of }) {
  const { kind, icon, word } = look(of);
  return html`<${Chip} kind=${kind} icon=${icon}>${word}<//>`;
}

/** @param {{title: string, sub?: any, right?: any, legend?: any[], flush?: boolean, cls?: string, mono?: boolean, children?: any}} props */
export const Card = ({ title, sub, right, legend, flush, cls = "", mono, children }) => html`
  <section class="card ${cls}" aria-label=${title}>
    <header><h2 class=${mono ? "mono" : ""}>${title}</h2>${sub && html`<span class="sub">${sub}</span>`}<span class="sp"></span>${right}</header>
    ${legend && html`<div class="lrow"><${Legend} rows=${legend} /></div>`}
    <div class="body ${flush ? "flush" : ""}">${children}</div>
  </section>`;

/** Names of series with their values, in place of a legend box. @param {{rows: [string, string, any][]}} props */
export const Legend = ({ rows }) => html`<div class="legend">${rows.map(([color, name, value]) => html`<span key=${name}><i style=${{ background: `var(${color})` }}></i>${name} <b>${value}</b></span>`)}</div>`;

/** Copies a text and says so for a moment. @param {{text: string, label?: string, cls?: string}} props */
export function Copy({ text, label = "Copy", cls = "ib bare" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button class=${cls} type="button" title=${label} aria-label=${label} onClick=${copy}><${Icon} name=${done ? "check" : "copy"} small /></button>`;
}

/** A command to copy. @param {{text: string}} props */
export const Cmd = ({ text }) => html`<div class="cmd"><span class="p">$ </span>${text}<${Copy} text=${text} label="Copy the command" /></div>`;

/** A moment: how long ago by the server's clock, exactly when in its title. @param {{at: number|null|undefined, ago?: boolean}} props */
export const Ago = ({ at, ago = true }) => at == null ? UNKNOWN : html`<time title=${exact(at)}>${span(now() - at)}${ago ? " ago" : ""}</time>`;

/** @param {{at: number}} props */
export const Clock = ({ at }) => html`<time title=${exact(at)}>${clock(at)}</time>`;

/** Why something is as it is: a colour, a shape, and the server's own words. @param {{of?: string, children?: any}} props */
export function Why({ of = "waiting", children }) {
  const { kind, icon } = look(of);
  return html`<div class="why ${kind}"><${Icon} name=${icon} /><div>${children}</div></div>`;
}

/** @param {{name: string, value: any, unit?: string, children?: any}} props */
export const Stat = ({ name, value, unit, children }) => html`<div class="stat"><dt>${name}</dt><dd>${value}${unit && html`<small>${unit}</small>`}</dd><dd class="ft">${children}</dd></div>`;

/** @param {{name: string, title?: any, children?: any}} props */
export const Pair = ({ name, children }) => html`<dt>${name}</dt><dd>${children}</dd>`;

const SPARKED = 60; // seconds
/** A number over the last minute; what is not known of it stays empty. @param {{values: (number|null)[], color?: string, width?: number, height?: number}} props */
export function Spark({ values, color = "--s1", width = 96, height = 22 }) {
  const shown = values.slice(-SPARKED).map((value) => value ?? 0), first = SPARKED - shown.length;
  if (shown.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const top = Math.max(...shown) * 1.05 || 1, x = (/** @type {number} */ i) => (((first + i) / (SPARKED - 1)) * width).toFixed(1);
  const line = shown.map((value, i) => `${i ? "L" : "M"}${x(i)} ${(height - 1.5 - (value / top) * (height - 3)).toFixed(1)}`).join("");
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"><path d="${line}L${width} ${height}L${x(0)} ${height}Z" fill="var(${color})" opacity=".12" /><path d=${line} fill="none" stroke="var(${color})" stroke-width="1.5" stroke-linejoin="round" /></svg>`;
}

/** Buttons of which one is pressed. @param {{label: string, of: [string, string][], value: string, set: (value: string) => void, cls?: string}} props */
export const Choice = ({ label, of, value, set, cls = "" }) => html`<div class="seg ${cls}" role="group" aria-label=${label}>${of.map(([id, text]) => html`<button type="button" key=${id} aria-pressed=${value === id} onClick=${() => set(id)}>${text}</button>`)}</div>`;

/** Whether the key of this page may do a thing; a server without keys allows everything. @param {string} scope */
export function may(scope) {
  const session = twin.peek()?.session;
  return !session?.needs_key || session.scopes.includes(scope);
}

/**
 * A button that does something on the server: disabled with the scope that is missing, waiting while
 * the server works, and then showing what it said. Nothing is shown as done before it is.
 * @param {{scope: string, icon?: string, kind?: string, act: () => Promise<any>, said?: (text: string, ok: boolean) => void, children?: any, label?: string}} props
 */
export function Deed({ scope, icon, kind = "", act, children, label }) {
  const [busy, setBusy] = useState(false);
  const allowed = may(scope);
  const press = async () => {
    if (!allowed || busy) return;
    setBusy(true);
    await act();
    setBusy(false);
  };
  return html`<button class="btn ${kind}" type="button" aria-disabled=${!allowed || busy} aria-busy=${busy} aria-label=${label}
    title=${allowed ? label : `Needs a key with the scope "${scope}"`} onClick=${press}>
    ${icon && html`<${Icon} name=${allowed ? icon : "key"} small />`}${children}${allowed ? null : html`<span class="sr">, needs the scope ${scope}</span>`}</button>`;
}

/** What the server said to the last deed. @param {{said: {ok: boolean, text: string}|null}} props */
export const Said = ({ said }) => said && html`<div role="status"><${Why} of=${said.ok ? "ok" : "error"}>${said.text}<//></div>`;

/** The text of an answer for people. @param {import("./live.js").Answer} answer @param {string} done */
export const outcome = (answer, done) => ({ ok: answer.ok, text: answer.ok ? done : (answer.error?.message ?? "The server refused.") });

/** A section that the server could not tell, in its own words. @param {{of: any, what: string}} props */
export const Missing = ({ of, what }) => html`<p class="none">${of?.error ? of.error.message : `${what}: nothing here yet.`}</p>`;

/** A JSON value on one line. @param {{value: any}} props */
export function Json({ value }) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return html`<span class="js">${leaf(value)}</span>`;
  return html`<span class="js">${Object.entries(value).map(([key, item], i) => html`${i ? html`<span class="k">, </span>` : ""}<span class="k">${key} </span>${leaf(item)}`)}</span>`;
}

/** @param {any} value */
function leaf(value) {
  const kind = typeof value === "number" ? "n" : typeof value === "string" ? "s" : "b";
  return html`<span class=${kind}>${typeof value === "string" ? value : JSON.stringify(value)}</span>`;
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g;

/** A JSON value on many lines, with its kinds coloured. @param {{value: any}} props */
export function Pretty({ value }) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  const out = [];
  let at = 0;
  for (const match of text.matchAll(TOKEN)) {
    out.push(text.slice(at, match.index));
    const kind = match[2] ? "k" : match[1] ? "s" : match[3] ? "n" : "b";
    out.push(html`<span class=${kind}>${match[0]}</span>`);
    at = match.index + match[0].length;
  }
  return html`<pre class="doc js" tabindex="0">${out}${text.slice(at)}</pre>`;
}

/** A page or card with nothing in it yet: what would be here, and the commands that make it so. @param {{title: string, text: string, commands: string[], children?: any}} props */
export const Empty = ({ title, text, commands, children }) => html`<section class="card" aria-label=${title}><div class="pad stack body tops">
  <h2>${title}</h2><p class="soft">${text}</p>${commands.map((line) => html`<${Cmd} key=${line} text=${line} />`)}${children}</div></section>`;

/** Opens a row with a click or with Enter. @param {() => void} open */
export const opens = (open) => ({
  class: "click", tabindex: 0, onClick: open,
  onKeyDown: (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && event.target === event.currentTarget) open();
  },
});
