// What the page knows, and how it hears more: one EventSource for all tabs of a browser.
//
// Browsers open six connections to a server over HTTP/1.1, so a stream for each tab would leave the
// seventh without a page. A Web Lock chooses the tab that leads; it has the stream of all pages that
// are open, and a BroadcastChannel tells the others. When it is closed, the next one leads.
import { signal, batch } from "../vendor/signals.js";
import { reduce } from "./reduce.js";

/** @typedef {import("./reduce.js").Twin} Twin */
/** @typedef {{ok: boolean, status: number, data: any, error: {code: string, message: string}|null}} Answer */

const BACKOFF_MS = [1000, 2000, 4000, 8000, 15000];
const SILENCE_MS = 6000;

/** @type {{value: any, peek: () => any}} */
export const twin = signal(null);
/** The live tail of a topic, apart from the twin: four times a second, and one card draws it. @type {{value: any, peek: () => any}} */
export const tailed = signal(null);
/** live, away or sign_in; `since` is the server's time of what is shown, `again` when to try next. */
export const link = signal({ state: "live", since: 0, again: 0 });
export const frames = signal(0);
/** The version of a server that is newer than this page, if there is one. */
export const newer = signal("");

let heard = performance.now();
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
  if (event !== "peek") heard = performance.now();
  if (event === "state" && before?.version && current?.version !== before.version) newer.value = current?.version ?? "";
  if (!document.hidden) draw(event);
}

/** @param {string} event */
function draw(event) {
  batch(() => {
    tailed.value = current?.sections.peek ?? null;
    if (event === "peek") return;
    twin.value = current;
    if (link.peek().state !== "live") link.value = { state: "live", since: 0, again: 0 };
    frames.value++;
  });
}

addEventListener("visibilitychange", () => {
  document.documentElement.classList.toggle("hidden", document.hidden);
  if (!document.hidden && current !== twin.peek()) draw("state");
});

/** @param {number} again when the next try is, by this machine's clock */
function lost(again) {
  link.value = { state: "away", since: current?.at ?? 0, again };
}

// ---- the stream ----------------------------------------------------------------------------

/** What this tab shows, as the stream names it. */
let subject = "";
const tab = crypto.getRandomValues(new Uint32Array(2)).join("-");
/** @type {BroadcastChannel|null} */
let channel = null;
/** @type {Map<string, string>} the tabs and what they show; of the leader only */
const tabs = new Map();
/** @type {EventSource|null} */
let source = null;
let leads = false;
let failures = 0;
/** When to open the stream, and when to take silence for absence: apart, as a frame ends only the second. @type {number|undefined} */
let opening;
/** @type {number|undefined} */
let silence;

/** @param {any} message */
function tell(message) {
  channel?.postMessage(message);
  hear(message);
}

/** @param {any} message */
function hear(message) {
  if (message.event && (message.on === undefined || message.on === subject)) take(message.event, message.data);
  if (message.lost) lost(message.lost);
  if (message.signIn) link.value = { state: "sign_in", since: 0, again: 0 };
  if (message.roll && !leads) channel?.postMessage({ here: tab, on: subject });
  if (!leads) return;
  if (message.here && tabs.get(message.here) !== message.on) {
    tabs.set(message.here, message.on);
    open();
  }
  if (message.gone && tabs.delete(message.gone)) open();
  if (message.retry) retry();
}

/** Open the stream of all tabs, again if there is one: after a moment, so that tabs may come together. */
function open() {
  clearTimeout(opening);
  opening = setTimeout(connect, source ? 50 : 0);
}

function connect() {
  source?.close();
  const subjects = [...new Set(tabs.values())];
  source = new EventSource(`/v0/live?${subjects.map((on) => `on=${encodeURIComponent(on)}`).join("&")}`);
  for (const event of ["state", "frame", "event", "peek"]) {
    source.addEventListener(event, (message) => {
      failures = 0;
      watch();
      const data = JSON.parse(message.data);
      tell({ event, on: data.on, data });
    });
  }
  source.addEventListener("bye", fail);
  source.onerror = fail;
  watch();
}

/** A server that says nothing for some seconds is away, whatever its connection looks like. */
function watch() {
  clearTimeout(silence);
  silence = setTimeout(fail, SILENCE_MS);
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
  leads = true;
  tabs.set(tab, subject);
  channel?.postMessage({ roll: true });
  open();
}

function join() {
  if (!navigator.locks || !window.BroadcastChannel) {
    lead(); // no secure context: this tab has a stream of its own
    return;
  }
  channel = new BroadcastChannel("penstock");
  channel.onmessage = (message) => hear(message.data);
  // The lock is held for as long as the tab is open.
  navigator.locks.request("penstock.stream", () => {
    lead();
    return new Promise(() => {});
  });
  if (!leads) channel.postMessage({ here: tab, on: subject });
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
  if (own.sign_in) link.value = { state: "sign_in", since: 0, again: 0 };
  else join();
}

/** Show another subject of the same page: its address, its twin, its stream. @param {string} address */
export async function visit(address) {
  history.replaceState(null, "", address);
  query.value = new URLSearchParams(location.search);
  const answer = await api("GET", address);
  if (!answer.ok || `${location.pathname}${location.search}` !== address) return;
  subject = subjectOf(answer.data);
  take("state", answer.data);
  if (leads) {
    tabs.set(tab, subject);
    open();
  } else channel?.postMessage({ here: tab, on: subject });
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

/** Whether the key of this page may do a thing; a server without keys allows everything. @param {string} scope */
export function may(scope) {
  const session = twin.peek()?.session;
  return !session?.needs_key || session.scopes.includes(scope);
}

/** Sign in with a key, and come back to where one was. @param {string} key @returns {Promise<Answer>} */
export async function signIn(key) {
  const answer = await api("POST", "/v0/session", undefined, { Authorization: `Bearer ${key}` });
  if (answer.ok) location.reload();
  return answer;
}

export async function signOut() {
  await api("DELETE", "/v0/session");
  location.reload();
}

// ---- the state of a page is in its address ---------------------------------------------------

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
