// Numbers, times and words for people. Pure: a value in, text out, no clock and no page.
// Zero is "0" and unknown is "–", never the other way round.

/** @typedef {{kind: string, icon: string, word: string}} Look  a state: its colour, shape and word */

export const UNKNOWN = "–";
const THIN = "\u00a0"; // stays on one line with its unit

/** Three digits at most, as `kernel/units` has them. @param {number} value */
function short(value) {
  if (value > 0 && value < 0.1) return value < 0.001 ? "0.001" : String(Number(value.toPrecision(1))); // little is not nothing
  return value >= 100 || value === Math.trunc(value) ? value.toFixed(0) : value.toFixed(1);
}

/** @param {unknown} value @returns {value is number} */
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** `158 M`, `25.5 k`, `214`. @param {number|null|undefined} value */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e4, "k"]])) {
    if (Math.abs(value) >= size) return short(value / (unit === "k" ? 1e3 : size)) + THIN + unit;
  }
  return Math.abs(value) >= 1000 ? grouped(Math.round(value)) : short(value);
}

/** `48,213,907`. @param {number|null|undefined} value */
export function grouped(value) {
  if (!known(value)) return UNKNOWN;
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `30.4 k/s`. @param {number|null|undefined} value */
export function rate(value) {
  return known(value) ? `${count(value)}/s` : UNKNOWN;
}

/** `12.4 GiB`. @param {number|null|undefined} value */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  for (const [power, unit] of /** @type {[number, string][]} */ ([[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]])) {
    if (value >= 2 ** power) return short(value / 2 ** power) + THIN + unit;
  }
  return value === 0 ? "0" : short(value) + THIN + "B";
}

/** `764 µs`, `2.6 ms`, `1.4 s`, `6 min 12 s`. @param {number|null|undefined} value in ms */
export function ms(value) {
  if (!known(value)) return UNKNOWN;
  if (value <= 0) return "0";
  if (value < 1) return short(value * 1000) + THIN + "µs";
  if (value < 1000) return short(value) + THIN + "ms";
  return span(value);
}

/** A span of time in two units at most: `0.8 s`, `6 min 12 s`, `2 h 2 min`. @param {number|null|undefined} value in ms */
export function span(value) {
  if (!known(value)) return UNKNOWN;
  const seconds = Math.max(0, value) / 1000;
  if (seconds < 10) return seconds.toFixed(1) + THIN + "s";
  if (seconds < 60) return Math.floor(seconds) + THIN + "s";
  const units = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]);
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, unit] = units[first];
  const [less, lesser] = units[first + 1];
  const rest = Math.floor((seconds % size) / less);
  return `${Math.floor(seconds / size)}${THIN}${unit}` + (rest ? ` ${rest}${THIN}${lesser}` : "");
}

/** @param {number|null|undefined} value from 0 to 1 */
export const percent = (value) => (known(value) ? `${Math.round(value * 100)}%` : UNKNOWN);

/** @param {number} value @param {number} width */
const pad = (value, width = 2) => String(value).padStart(width, "0");

/** `14:09:41` here. @param {number|null|undefined} at ms since 1970 */
export function clock(at) {
  if (!known(at)) return UNKNOWN;
  const day = new Date(at);
  return `${pad(day.getHours())}:${pad(day.getMinutes())}:${pad(day.getSeconds())}`;
}

/** `14:09:41.046` here. @param {number|null|undefined} at */
export const clockMs = (at) => (known(at) ? `${clock(at)}.${pad(new Date(at).getMilliseconds(), 3)}` : UNKNOWN);

/** The whole date with its zone, for titles. @param {number|null|undefined} at */
export function exact(at) {
  if (!known(at)) return "";
  const day = new Date(at), zone = -day.getTimezoneOffset();
  const offset = `${zone < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(zone) / 60))}:${pad(Math.abs(zone) % 60)}`;
  return `${day.getFullYear()}-${pad(day.getMonth() + 1)}-${pad(day.getDate())} ${clockMs(at)} ${offset}`;
}

/** `1 topic`, `14 topics`. @param {number} n @param {string} one @param {string} [many] */
export const some = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** The states of tables, parts and readers. @type {Record<string, Look>} */
export const STATES = {
  fresh: { kind: "ok", icon: "check", word: "fresh" },
  ok: { kind: "ok", icon: "check", word: "ok" },
  running: { kind: "run", icon: "refresh-cw", word: "refreshing" },
  loading: { kind: "run", icon: "refresh-cw", word: "loading" },
  waiting: { kind: "idle", icon: "clock", word: "waiting" },
  late: { kind: "slow", icon: "triangle-alert", word: "late" },
  slow: { kind: "slow", icon: "triangle-alert", word: "slow" },
  held: { kind: "idle", icon: "pause", word: "held" },
  error: { kind: "bad", icon: "circle-alert", word: "failing" },
  failed: { kind: "bad", icon: "circle-alert", word: "failed" },
  paused: { kind: "idle", icon: "pause", word: "paused" },
  away: { kind: "slow", icon: "plug-zap", word: "away" },
  ended: { kind: "idle", icon: "x", word: "ended" },
};

/** How a state looks; one that we do not know keeps its own word. @param {string} state @returns {Look} */
export const look = (state) => STATES[state] ?? { kind: "idle", icon: "info", word: String(state ?? UNKNOWN) };

/** The levels of a verdict. @type {Record<string, Look>} */
export const LEVELS = {
  ok: { kind: "ok", icon: "check", word: "all is well" },
  slow: { kind: "slow", icon: "triangle-alert", word: "slower" },
  failing: { kind: "slow", icon: "triangle-alert", word: "something fails" },
  refusing: { kind: "bad", icon: "circle-alert", word: "refusing" },
  away: { kind: "bad", icon: "plug-zap", word: "away" },
};

/** How a verdict looks; a level that we do not know is no good news. @param {string} level @returns {Look} */
export const verdictLook = (level) => LEVELS[level] ?? { ...LEVELS.slow, word: String(level) };

/** The rungs of the ladder. @type {{name: string, from: number, text: string}[]} */
export const RUNGS = [
  { name: "steady", from: 0, text: "pushes go out at once" },
  { name: "coalesce", from: 0.2, text: "pushes wait a little to carry more" },
  { name: "widen", from: 0.4, text: "commits wait a little for company" },
  { name: "defer", from: 0.8, text: "low bands wait for high ones" },
  { name: "refuse", from: 0.95, text: "writers are told 429 with a time" },
];

/** The colour of a rung, as a state. @param {string} name */
export const rungKind = (name) => ({ widen: "slow", defer: "bad", refuse: "bad" })[name] ?? "ok";

/** What records of a durability survive. @param {string} durability */
export const survives = (durability) => ({
  fsync: "power loss", disk: "a crash, power loss after 0.1 s", memory: "nothing but a clean stop", ephemeral: "nothing",
})[durability] ?? String(durability ?? UNKNOWN);

/** How long and how much a topic keeps. @param {{ttl_ms?: number, cap_bytes?: number, cap_records?: number}} config */
export function keeps(config) {
  const limits = [
    config.ttl_ms ? span(config.ttl_ms) : "",
    config.cap_bytes ? bytes(config.cap_bytes) : "",
    config.cap_records ? some(config.cap_records, "record") : "",
  ].filter(Boolean);
  return limits.length ? limits.join(", ") : "everything";
}

/** A word of a shell command, quoted where the shell needs it. @param {unknown} word */
export function quoted(word) {
  const text = String(word);
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A command line of its words. @param {...unknown} words */
export const command = (...words) => words.map(quoted).join(" ");

/** The command that shows what a page does. @param {{page: string, name?: string|null, id?: string|null, query?: any}} twin */
export function pageCommand({ page, name, id, query = {} }) {
  const words = {
    topics: ["topic", "list", ...(query.prefix ? ["--prefix", query.prefix] : [])], topic: ["topic", "show", name], queue: ["queue", "show", name], pipeline: ["ingest", "status"],
    tables: ["table", "status"], table: ["table", "show", name], entities: query.space ? ["entity", "list", query.space] : null, entity: ["entity", "get", name, id],
  }[page];
  return command("penstock", ...(words ?? ["status"]));
}

/** From how old on a backlog is too old, in ms. */
export const TOO_OLD_MS = 30 * 60_000;

/**
 * How a queue keeps up, and when its backlog will be too old at this pace.
 * @param {{ready: number, in_per_s: number, finished_per_s: number, leased: number, workers: any[]}} queue @param {number} at
 * @returns {{state: string, text: string}}
 */
export function backlog(queue, at) {
  const { ready, in_per_s: comes, finished_per_s: done } = queue;
  if (!ready && !queue.leased) return { state: "ok", text: "No job waits." };
  if (!queue.workers.length && done === 0) return { state: ready ? "late" : "waiting", text: `${some(ready, "job")} and nobody works on them.` };
  if (comes <= done) return { state: "ok", text: `The workers keep up: ${short(comes)} jobs a second come, ${short(done)} are finished.` };
  const seconds = (TOO_OLD_MS / 1000 * done - ready) / (comes - done);
  const when = done === 0 ? "The backlog only grows." : seconds <= 0 ? "At this pace its end is more than 30 minutes away." : `At this pace the backlog is 30 minutes old by ${clock(at + seconds * 1000).slice(0, 5)}.`;
  return { state: "late", text: `More jobs come than are finished: ${short(comes)} a second against ${short(done)}. ${when}` };
}
