// Topics: what is busy, who is behind?
import { bytes, count, rate, some, survives } from "./format.js";
import { api, visit } from "./live.js";
import { Chip, Deed, Empty, html, Icon, Missing, opens, Spark, useEffect, useRef, useState, address } from "./parts.js";
import { mount } from "./shell.js";

const TYPES = /** @type {[string, string][]} */ ([["", "All"], ["log", "Logs"], ["queue", "Queues"], ["space", "Spaces"]]);
const SORTS = { rate: "busiest first", name: "by name", behind: "furthest behind first", bytes: "largest first" };
const KIND = { log: "water", queue: "run", space: "" };
const COMMANDS = [`penstock topic write meters '{"meter": 7, "kwh": 1.5}'`];

/** Rows behind the live ones are asked for again so often, up to so many pages of them. */
const REFRESH_MS = 10e3, REFRESHED_PAGES = 10;

const deeds = () => import("./deeds.js");

/** The page of a topic: a queue and a space have pages of their own. @param {any} row */
const pageOf = (row) => row.type === "queue" ? `/queues/${encodeURIComponent(row.topic)}` : row.type === "space" ? `/entities?space=${encodeURIComponent(row.topic)}` : `/topics/${encodeURIComponent(row.topic)}`;

/** The rates of the last minute, by topic: this page collects them. @param {any[]} rows @param {number} at */
function useRates(rows, at) {
  const kept = useRef(/** @type {{at: number, of: Map<string, number[]>}} */ ({ at: 0, of: new Map() }));
  if (at > kept.current.at) {
    const next = new Map(rows.map((row) => [row.topic, [...(kept.current.of.get(row.topic) ?? []), row.in_per_s ?? 0].slice(-60)]));
    kept.current = { at, of: next };
  }
  return kept.current.of;
}

/** @param {any[]} rows @param {number|undefined} total @param {boolean} filtered */
function sentence(rows, total, filtered) {
  const slow = rows.filter((row) => row.watchers_behind > 0);
  const many = filtered ? `${some(rows.length, "topic")} found.` : `${some(total ?? rows.length, "topic")}.`;
  if (!slow.length) return `${many} Everyone who watches keeps up.`;
  const watchers = slow.reduce((sum, row) => sum + row.watchers_behind, 0);
  return `${many} ${some(watchers, "watcher")} ${watchers === 1 ? "is" : "are"} slow and served apart.`;
}

/** A head of a column that sorts by it. @param {{id: string, sort: string, num?: boolean, cls?: string, children?: any}} props */
const Head = ({ id, sort, num, cls = "", children }) => html`<th class="${num ? "num" : ""} ${cls}" aria-sort=${sort === id ? (id === "name" ? "ascending" : "descending") : null}><button type="button" onClick=${() => visit(address({ sort: id === "rate" ? null : id, cursor: null }))}>${children}</button></th>`;

/** @param {{row: any, rates: number[]}} props */
function Row({ row, rates }) {
  const busy = rates.some((value) => value > 0);
  return html`<tr ...${opens(() => location.assign(pageOf(row)))}>
    <td class="mono clip2"><a href=${pageOf(row)}>${row.topic}</a></td><td><${Chip} kind=${/** @type {any} */ (KIND)[row.type]}>${row.type}<//></td>
    <td class="hidep soft nowrap">${survives(row.durability)}</td><td class="num nowrap">${row.in_per_s ? rate(row.in_per_s) : html`<span class="muted">0</span>`}</td>
    <td class="hidep">${busy ? html`<${Spark} values=${rates} height=${20} />` : html`<span class="muted">–</span>`}</td>
    <td class="num hidep">${count(row.watchers)}</td><td class="num">${row.watchers_behind ? html`<${Chip} kind="slow" icon="triangle-alert">${count(row.watchers_behind)}<//>` : 0}</td>
    <td class="num nowrap hidep">${bytes(row.bytes)}</td><td class="mono hidep">${row.band || ""}</td><td class="soft wide"><span class="two">${row.reason}</span></td></tr>`;
}

/** Names may be 100,000: the server looks for them, once the typing rests. @param {{value: string}} props */
function Filter({ value }) {
  const [text, setText] = useState(value);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => visit(address({ prefix: text || null, cursor: null })), 150);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<input class="find" placeholder="Names that begin with" aria-label="Names that begin with" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { topics, counts } = twin.sections, query = twin.query ?? {}, sort = query.sort ?? "rate";
  const rates = useRates(topics?.topics ?? [], twin.at);
  const [more, setMore] = useState(/** @type {{of: any, pages: number, rows: any[], next: any}} */ ({ of: null, pages: 0, rows: [], next: null })), asked = useRef({ last: 0, asking: 0 });
  const key = JSON.stringify([query.prefix, query.type, sort]);
  const older = more.of === key ? more : { of: key, pages: 0, rows: [], next: topics?.next_cursor };
  /** Ask for more pages behind some rows; an answer that is overtaken by another does not count. @param {any[]} before @param {any} next @param {number} pages @param {number} all */
  const load = async (before, next, pages, all) => {
    const mine = ++asked.current.last, rows = [...before];
    for (let page = 0; page < pages && next; page++) {
      asked.current.asking++;
      const answer = await api("GET", `/v0/topics?${new URLSearchParams({ page_size: "100", ...query, cursor: next })}`);
      asked.current.asking--;
      if (!answer.ok || mine !== asked.current.last) return;
      rows.push(...answer.data.topics);
      next = answer.data.next_cursor;
    }
    setMore({ of: key, pages: all, rows, next });
  };
  const again = useRef(() => {});
  again.current = () => document.hidden || asked.current.asking || load([], topics?.next_cursor, older.pages, older.pages);
  useEffect(() => {
    if (!older.pages || older.pages > REFRESHED_PAGES) return undefined;
    const timer = setInterval(() => again.current(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [key, older.pages]);
  if (!topics?.topics) return html`<${Missing} of=${topics} what="Topics" />`;
  // The live rows are re-sorted every second: one that was behind them may be among them now.
  const seen = new Set(), rows = [...topics.topics, ...older.rows].filter((row) => !seen.has(row.topic) && seen.add(row.topic)), filtered = Boolean(query.prefix || query.type);
  return html`<div class="titlebar"><h1>${sentence(rows, counts?.topics, filtered)}</h1><span class="sp"></span>
      <${Deed} scope="write" kind="go" icon="send" act=${() => deeds().then((module) => module.publish(""))}>Publish<//>
      <${Deed} scope="admin" icon="plus" act=${() => deeds().then((module) => module.newTopic())}>New topic<//></div>
    ${!rows.length && !filtered ? html`<${Empty} title="No topic yet" text="A topic is made by the first write to it. This page fills by itself." commands=${COMMANDS} />` : html`
    <section class="card" aria-label="Topics"><header><${Filter} value=${query.prefix ?? ""} />
      <div class="seg" role="group" aria-label="Kind">${TYPES.map(([id, text]) => html`<button type="button" key=${id} aria-pressed=${(query.type ?? "") === id} onClick=${() => visit(address({ type: id || null, cursor: null }))}>${text}</button>`)}</div>
      <span class="sp"></span><span class="sub">${/** @type {any} */ (SORTS)[sort]} · system topics hidden</span></header>
      <div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><${Head} id="name" sort=${sort}>topic<//><th>kind</th><th class="hidep">survives</th><${Head} id="rate" sort=${sort} num>written<//><th class="hidep">last minute</th><th class="num hidep">watchers</th><${Head} id="behind" sort=${sort} num>behind<//><${Head} id="bytes" sort=${sort} num cls="hidep">kept<//><th class="hidep">band</th><th class="wide">push</th></tr></thead>
        <tbody>${rows.map((row) => html`<${Row} key=${row.topic} row=${row} rates=${rates.get(row.topic) ?? []} />`)}</tbody></table></div>
      ${!rows.length ? html`<p class="none">No topic begins like this.</p>` : null}
      ${older.next ? html`<p class="none"><button class="btn" onClick=${() => load(older.rows, older.next, 1, older.pages + 1)}><${Icon} name="arrow-down" small />More</button></p>` : null}</section>`}`;
}

mount({ page: "topics", crumbs: () => [html`<span>Topics</span>`], View });
