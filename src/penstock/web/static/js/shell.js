// What is around every page: the way to other pages, how the link to the server stands, and keys.
import { render } from "../vendor/preact.js";
import { api, frames, link, newer, start, tryNow, twin } from "./live.js";
import { clock, pageCommand, span, verdictLook } from "./format.js";
import { Choice, Copy, flipTheme, html, Icon, PAGES, theme, use, useAddress, useEffect, useState } from "./parts.js";

/** @typedef {{page: string, crumbs: (twin: any) => any[], ranges?: [string, string][], View: (props: {twin: any}) => any}} Page */

const Logo = () => html`<svg viewBox="0 0 24 24" aria-hidden="true"><rect x="1" y="1" width="22" height="22" rx="6" fill="var(--water)" /><path d="M5 8.5h6.5a3 3 0 0 1 3 3v4" fill="none" stroke="var(--surface)" stroke-width="3.2" stroke-linecap="round" /><path d="M11 18.5h7" stroke="var(--surface)" stroke-width="2.2" stroke-linecap="round" /><path d="M9 5.4v6.2" stroke="var(--surface)" stroke-width="1.6" stroke-linecap="round" /></svg>`;

/** What stands beside a page's name: how many, and what is wrong with them. @param {string} id @param {any} nav @returns {[any, boolean]} */
function badge(id, nav) {
  if (!nav || nav.error) return [null, false];
  if (id === "tables" && nav.failing) return [`${nav.failing} failing`, true];
  if (id === "tables" && nav.late) return [`${nav.late} late`, true];
  return [{ topics: nav.topics, queues: nav.queues, tables: nav.tables, entities: nav.spaces }[id] ?? null, false];
}

/** @param {{page: string, twin: any}} props */
function Side({ page, twin: shown }) {
  const session = shown.session;
  const here = shown.page === "queue" || (page === "topics" && shown.query?.type === "queue") ? "queues" : page;
  return html`<aside class="side">
    <a class="brand" href="/" aria-label="Penstock, overview"><${Logo} /><span>Penstock</span></a>
    <nav aria-label="Pages">${PAGES.map(([id, href, icon, label, , more]) => {
      const [text, hot] = badge(id, shown.sections.nav);
      return html`<a key=${id} href=${href} class=${more ? "more" : ""} aria-current=${id === here ? "page" : null} title=${label}><${Icon} name=${icon} /><span class="l">${label}</span>${text ? html`<span class="n ${hot ? "hot" : ""}">${text}</span>` : null}</a>`;
    })}</nav>
    <div class="foot">penstock ${shown.version}${shown.started ? ` · up ${span(shown.at - shown.started)}` : ""}<br />${shown.address ?? location.host} · ${!session?.needs_key ? "no keys" : html`key ${session.key ?? ""} · <button class="link" onClick=${signOut}>sign out</button>`}</div>
  </aside>`;
}

function Link() {
  const { state } = use(link);
  const n = use(frames);
  if (state === "live") return html`<span class="live"><i class="dot" key=${n}></i><span class="txt">live</span></span>`;
  return html`<span class="live"><${Icon} name="plug-zap" small /><span class="txt">away</span></span>`;
}

function Away() {
  const { state, since, heard, again } = use(link);
  const [, tick] = useState(0);
  useEffect(() => {
    if (state !== "away") return undefined;
    const timer = setInterval(() => tick((/** @type {number} */ n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [state]);
  if (state !== "away") return null;
  const left = Math.max(0, Math.ceil((again - Date.now()) / 1000));
  return html`<div class="banner" role="status"><${Icon} name="plug-zap" /><span>The server does not answer. What you see is from ${clock(since)}${since ? `, ${span(Date.now() - heard)} ago` : ""}. ${left ? `Trying again in ${left} s.` : "Trying again."}</span><button class="btn s" onClick=${tryNow}>Try now</button></div>`;
}

function News() {
  const version = use(newer);
  if (!version) return null;
  return html`<div class="banner news" role="status"><${Icon} name="info" /><span>The server is now penstock ${version}; this page is older.</span><button class="btn s" onClick=${() => location.reload()}>Reload</button></div>`;
}

/** A change of the verdict is said once, politely. @param {{verdict: any}} props */
function Announced({ verdict }) {
  const [text, setText] = useState("");
  useEffect(() => {
    if (verdict?.sentence) setText(verdict.sentence);
  }, [verdict?.level]);
  return html`<div class="sr" role="status" aria-live="polite">${text}</div>`;
}

/** Sign in with a key, and come back to where one was. @param {string} key @returns {Promise<import("./live.js").Answer>} */
async function signIn(key) {
  const answer = await api("POST", "/v0/session", undefined, { Authorization: `Bearer ${key}` });
  if (answer.ok) location.reload();
  return answer;
}

async function signOut() {
  await api("DELETE", "/v0/session");
  location.reload();
}

function SignIn() {
  const [said, setSaid] = useState("");
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const answer = await signIn(String(new FormData(form).get("key")));
    if (!answer.ok) setSaid(answer.error?.message ?? "");
  };
  return html`<section class="card signin" aria-label="Sign in"><div class="body tops"><form class="stack" onSubmit=${submit}>
    <h1 class="lead">This server asks for a key.</h1>
    <p class="soft">Sign in with one of its API keys. The key is sent once and not kept; a cookie stands for it for 12 hours.</p>
    <label class="field">key<input name="key" type="password" autocomplete="off" required autofocus /></label>
    ${said && html`<div class="why bad" role="alert"><${Icon} name="circle-alert" /><div>${said}</div></div>`}
    <div class="ends"><button class="btn go"><${Icon} name="key" small />Sign in</button></div></form></div></section>`;
}

/** @param {{ranges: [string, string][]}} props */
function Range({ ranges }) {
  const [value, set] = useAddress("range", ranges[0][0]);
  return html`<${Choice} label="Time shown" of=${ranges} value=${value} set=${set} />`;
}

/** @param {{of: Page}} props */
function Shell({ of }) {
  const shown = use(twin), { state } = use(link), dark = use(theme) === "dark";
  const crumbs = of.crumbs(shown), json = `${location.pathname}?${new URLSearchParams({ ...shown.query, format: "json" })}`;
  return html`<a class="skip" href="#main">Skip to content</a><div class="shell"><${Side} page=${of.page} twin=${shown} />
    <div class="col-main"><header class="top"><div class="crumbs">${crumbs.map((crumb, i) => html`${i ? html`<${Icon} name="chevron-right" small />` : null}${crumb}`)}</div><span class="sp"></span>
      <button class="find" onClick=${goTo} aria-label="Go to, press / or Ctrl K"><${Icon} name="search" small /><span>Go to</span><kbd>/</kbd></button>
      ${of.ranges && html`<${Range} ranges=${of.ranges} />`}<${Link} />
      <a class="ib hidep" href=${json} title="As JSON" aria-label="This page as JSON"><${Icon} name="code" /></a>
      <${Copy} text=${pageCommand(shown)} label="As a command: ${pageCommand(shown)}" cls="ib hidep" />
      <button class="ib" title="Light or dark" aria-label="Switch light and dark" onClick=${flipTheme}><${Icon} name=${dark ? "sun" : "moon"} /></button></header>
      <${Away} /><${News} /><${Announced} verdict=${shown.sections.verdict} />
      <main class="page ${state === "away" ? "stale" : ""}" id="main" tabindex="-1">${state === "sign_in" ? html`<${SignIn} />` : html`<${of.View} twin=${shown} />`}</main></div></div>`;
}

/** The sign of a verdict: a shape and a colour. @param {{level: string}} props */
export function Glyph({ level }) {
  const { kind } = verdictLook(level);
  if (kind === "ok") return html`<svg class="glyph" viewBox="0 0 26 26" aria-hidden="true"><circle cx="13" cy="13" r="12" fill="var(--ok)" /><path d="m7.5 13.4 3.7 3.7 7.3-7.6" fill="none" stroke="var(--surface)" stroke-width="2.6" stroke-linecap="round" stroke-linejoin="round" /></svg>`;
  return html`<svg class="glyph" viewBox="0 0 26 26" aria-hidden="true"><path d="M11.3 3.1a2 2 0 0 1 3.4 0l9.6 17.2a2 2 0 0 1-1.7 3H3.4a2 2 0 0 1-1.7-3Z" fill="var(--${kind})" /><path d="M13 10v6M13 19.4v.2" stroke="var(--surface)" stroke-width="2.4" stroke-linecap="round" /></svg>`;
}

// ---- keys ----------------------------------------------------------------------------------

const goTo = () => import("./goto.js").then((module) => module.openGoTo());
const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
let after = "";

/** @param {KeyboardEvent} event */
function key(event) {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    goTo();
    return;
  }
  if (typing() || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (after === "g") {
    const page = PAGES.find(([, , , , letter]) => letter === event.key);
    if (page) location.assign(page[1]);
  } else if (event.key === "/") {
    event.preventDefault();
    goTo();
  } else if (event.key === "?") {
    import("./goto.js").then((module) => module.openKeys());
  } else if (event.key === "j" || event.key === "k") {
    nextRow(event.key === "j" ? 1 : -1);
  } else if (event.key === "Escape") {
    /** @type {HTMLElement|null} */ (document.querySelector('main [aria-label="Close"]'))?.click();
  }
  after = event.key === "g" ? "g" : "";
}

/** @param {number} step */
function nextRow(step) {
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main tr.click, main .node")]);
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, at + step))]?.focus();
}

/** Draw a page, and keep drawing it. @param {Page} page */
export function mount(page) {
  start();
  const root = /** @type {HTMLElement} */ (document.getElementById("app"));
  root.replaceChildren();
  document.querySelector("body > .skip")?.remove();
  render(html`<${Shell} of=${page} />`, root);
  addEventListener("keydown", key);
}
