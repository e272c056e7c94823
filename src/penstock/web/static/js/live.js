// What the page knows, and how it hears more: one EventSource for all tabs of a browser.
//
// Browsers open six connections to a server over HTTP/1.1, so a stream for each tab would leave the
// seventh without a page. A Web Lock chooses the tab that leads; it has the stream of all pages that
// are open, and a BroadcastChannel tells the others. When it is closed, the next one leads; when it
// says nothing, as on a phone that suspends what cannot be seen, another takes the lock from it.
import { signal, batch } from "../vendor/signals.js";
import { heardOf, HERE_MS, present, reduce, subjects } from "./reduce.js";

/** @typedef {import("./reduce.js").Twin} Twin */
/** @typedef {{ok: boolean, status: number, data: any, error: {code: string, message: string}|null}} Answer */

const BACKOFF_MS = [1000, 2000, 4000, 8000, 15000];
const SILENCE_MS = 6000;
/** How long the tab that leads may take to say that it is there. */
const ANSWER_MS = 2000;

/** @type {{value: any, peek: () => any}} */
export const twin = signal(null);
/** The live tail of a topic, apart from the twin: four times a second, and one card draws it. @type {{value: any, peek: () => any}} */
export const tailed = signal(null);
const LIVE = { state: "live", since: 0, heard: 0, again: 0 };
/** live, away or sign_in; `since` is the server's time of what is shown, `heard` when it came and `again` when to try next, both by this machine's clock. */
export const link = signal(LIVE);
export const frames = signal(0);
/** The version of a server that is newer than this page, if there is one. */
export const newer = signal("");

let heard = performance.now();
let heardAt = Date.now();
/** What is known; `twin` is what is drawn, and waits while the tab is hidden. @type {Twin|null} */
let current = null;

/** The server's clock, as far as it is known: it stands still while the server is away. */
export function now() {
  const at = twin.peek()?.at ?? Date.now();
  return link.peek().state === "live" ? at + Math.min(2000, performance.now() - heard) : at;
}

/** @param {string} event @param {any} data */
function take(event, data) {
  const before = current;
  current = reduce(before, event, data);
  if (event !== "peek") [heard, heardAt] = [performance.now(), Date.now()];
  if (event === "state" && before?.version && current?.version !== before.version) newer.value = current?.version ?? "";
  if (!document.hidden) draw(event);
}

/** @param {string} event */
function draw(event) {
  batch(() => {
    tailed.value = current?.sections.peek ?? null;
    if (event === "peek") return;
    twin.value = current;
    if (link.peek().state !== "live") link.value = LIVE;
    frames.value++;
  });
}

addEventListener("visibilitychange", () => {
  document.documentElement.classList.toggle("hidden", document.hidden);
  if (!document.hidden && current !== twin.peek()) draw("state");
  if (subject) announce();
  if (!leads && channel && !document.hidden) watch(performance.now() - heard < SILENCE_MS ? SILENCE_MS : ANSWER_MS);
});

/** @param {number} again when the next try is, by this machine's clock */
function lost(again) {
  link.value = { state: "away", since: current?.at ?? 0, heard: heardAt, again };
}

// ---- the stream ----------------------------------------------------------------------------

/** What this tab shows, as the stream names it. */
let subject = "";
const tab = crypto.getRandomValues(new Uint32Array(2)).join("-");
/** @type {BroadcastChannel|null} */
let channel = null;
let tabs = /** @type {import("./reduce.js").Tabs} */ (new Map()); // of the leader only
let streamed = /** @type {string[]} */ ([]);
/** What a tab began to show, and what was left out of the stream: its next event must be a state. @type {Set<string>} */
const owed = new Set();
let last = ""; // the id of the last event
/** @type {EventSource|null} */
let source = null;
let leads = false;
/** The tab that leads, as far as this one was told. */
let leader = "";
/** This tab's place in the line for the lock. @type {AbortController|null} */
let turn = null;
let failures = 0;
/** When to open the stream, and when to take silence for absence: apart, as a frame ends only the second. */
let [opening, silence] = /** @type {(number|undefined)[]} */ ([]);

/** Tell all tabs, this one included. @param {any} message */
function tell(message) {
  channel?.postMessage({ ...message, by: tab });
  hear({ ...message, by: tab });
}

/** Say what this tab shows. */
function announce() {
  if (leads) here(tab, subject, document.hidden);
  else channel?.postMessage({ here: tab, on: subject, hidden: document.hidden });
}

/** @param {any} message from the tab that leads, if it has `by` */
function hear(message) {
  if (message.by) {
    if (message.roll || !leader) leader = message.by;
    if (message.by !== leader) return; // it was suspended, and does not know yet that another one leads
    if (message.roll && !leads) announce();
    const mine = message.event && (message.on === undefined || message.on === subject);
    if (mine) take(message.event, message.data);
    if (!leads && (mine || !message.event)) watch();
    if (message.lost) lost(message.lost);
    if (message.signIn) link.value = { ...LIVE, state: "sign_in" };
  } else if (leads) {
    if (message.here) here(message.here, message.on, message.hidden);
    if (message.gone && tabs.delete(message.gone)) reopen();
    if (message.retry) retry();
    if (message.ask) tell({ leads: true });
  }
}

/** A tab shows something. @param {string} id @param {string} on @param {boolean} hidden */
function here(id, on, hidden) {
  const found = heardOf(tabs, id, { on, hidden, heard: performance.now() });
  tabs = found.tabs;
  if (found.isNew) owed.add(on);
  reopen(found.isNew);
}

/** Open the stream again if it should have other pages, or open it from the start. @param {boolean} [fresh] */
function reopen(fresh = false) {
  const wanted = subjects(tabs, tab);
  if (fresh || wanted.length !== streamed.length || wanted.some((on) => !streamed.includes(on))) open();
}

/** Open the stream of all tabs, again if there is one: after a moment, so that tabs may come together. */
function open() {
  clearTimeout(opening);
  opening = setTimeout(connect, source ? 50 : 0);
}

function connect() {
  source?.close();
  streamed = subjects(tabs, tab);
  for (const { on } of tabs.values()) if (!streamed.includes(on)) owed.add(on);
  const asked = streamed.map((on) => ["on", on]);
  if (last && !streamed.some((on) => owed.has(on))) asked.push(["after", last]);
  source = new EventSource(`/v0/live?${new URLSearchParams(asked)}`);
  for (const event of ["state", "frame", "event", "peek"]) {
    source.addEventListener(event, (message) => {
      failures = 0;
      last = message.lastEventId;
      watch();
      const data = JSON.parse(message.data);
      if (event === "state") owed.delete(data.on);
      tell({ event, on: data.on, data });
    });
  }
  source.addEventListener("bye", fail);
  source.onerror = fail;
  watch();
}

/** Watch for silence: of the server, and in a tab that does not lead of the one that does. @param {number} [ms] */
function watch(ms = SILENCE_MS) {
  clearTimeout(silence);
  silence = setTimeout(leads ? fail : miss, ms);
}

/** Nothing came for this tab: what it shows is old. Ask the tab that leads whether it is there, and lead if it does not answer. */
function miss() {
  if (document.hidden) return;
  if (link.peek().state === "live" && performance.now() - heard > ANSWER_MS) lost(0);
  channel?.postMessage({ ask: tab });
  silence = setTimeout(() => stand(true), ANSWER_MS * (1 + Math.random())); // not all tabs at once
}

function fail() {
  source?.close();
  source = null;
  clearTimeout(silence);
  const wait = BACKOFF_MS[Math.min(failures++, BACKOFF_MS.length - 1)];
  tell({ lost: Date.now() + wait });
  clearTimeout(opening);
  opening = setTimeout(retry, wait);
}

/** An EventSource does not say why it failed: ask who we are first, which tells away from signed out. */
async function retry() {
  clearTimeout(opening);
  const answer = await api("GET", "/v0/session");
  if (!leads) return;
  if (answer.status === 0 || answer.status >= 500) fail();
  else if (answer.status === 401 || (answer.data?.needs_key && !answer.data.scopes.length)) tell({ signIn: true });
  else open();
}

/** Try at once. */
export function tryNow() {
  if (leads) retry();
  else channel?.postMessage({ retry: true });
}

function lead() {
  [leads, leader, tabs, last] = [true, tab, new Map(), ""];
  clearTimeout(silence);
  tell({ roll: true });
  announce(); // opens the stream
}

/** Another tab took the lock: this one was suspended, or too slow to answer. */
function stepDown() {
  leads = false;
  source?.close();
  source = null;
  clearTimeout(opening);
  stand();
  watch();
  announce();
}

/** Wait for the lock, and hold it for as long as the tab is open; or take it from a tab that does not answer. @param {boolean} [steal] */
function stand(steal = false) {
  turn?.abort();
  const mine = (turn = new AbortController());
  const held = () => new Promise(() => turn === mine && lead());
  navigator.locks.request("penstock.stream", steal ? { steal } : { signal: mine.signal }, held)
    .catch(() => turn === mine && (leads ? stepDown() : setTimeout(() => turn === mine && stand(), HERE_MS)));
}

function join() {
  if (!navigator.locks || !window.BroadcastChannel) {
    lead(); // no secure context: this tab has a stream of its own
    return;
  }
  channel = new BroadcastChannel("penstock");
  channel.onmessage = (message) => hear(message.data);
  stand();
  announce();
  watch();
  setInterval(() => {
    announce();
    tabs = present(tabs, tab, performance.now());
    if (leads) reopen();
  }, HERE_MS);
  addEventListener("pagehide", () => channel?.postMessage({ gone: tab }));
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
}

/** @param {Twin} next */
const subjectOf = (next) => next.on ?? location.pathname;

/** Begin with the twin that came with the page. */
export function start() {
  const own = JSON.parse(document.getElementById("twin")?.textContent ?? "null");
  current = reduce(null, "state", own);
  twin.value = current;
  tailed.value = current?.sections.peek ?? null;
  subject = subjectOf(own);
  if (own.sign_in) link.value = { ...LIVE, state: "sign_in" };
  else join();
}

/** Show another subject of the same page: its address, its twin, its stream. @param {string} address */
export async function visit(address) {
  history.replaceState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
  const answer = await api("GET", address);
  if (!answer.ok || `${location.pathname}${location.search}` !== address) return;
  subject = subjectOf(answer.data);
  take("state", answer.data);
  announce();
}

// ---- asking and doing ----------------------------------------------------------------------

/**
 * One request to this server. Never throws: no answer at all is status 0.
 * @param {string} method @param {string} path @param {any} [body] @param {Record<string, string>} [headers] @returns {Promise<Answer>}
 */
export async function api(method, path, body, headers = {}) {
  try {
    const sent = body === undefined ? {} : { body: JSON.stringify(body) };
    /** @type {Record<string, string>} */
    const type = body === undefined ? {} : { "Content-Type": "application/json" };
    const response = await fetch(path, { method, ...sent, headers: { Accept: "application/json", ...type, ...headers } });
    const data = await response.json().catch(() => null);
    const error = response.ok ? null : (data?.error ?? { code: String(response.status), message: response.statusText });
    return { ok: response.ok, status: response.status, data, error };
  } catch {
    return { ok: false, status: 0, data: null, error: { code: "away", message: "The server does not answer." } };
  }
}
