// One topic: what comes in, who gets it, what holds a push up?
import { Chart, column, RANGES, spanOf, useHistory } from "./chart.js";
import { bytes, clockMs, command, count, exact, grouped, keeps, ms, rate, some, span, survives } from "./format.js";
import { api, tailed, visit } from "./live.js";
import { Ago, Card, Chip, Cmd, Copy, Deed, Empty, html, Icon, Json, Legend, Missing, Pair, Pretty, Spark, Stat, use, useAddress, useEffect, useRef, useState, Why, address } from "./parts.js";
import { mount } from "./shell.js";

const LIVE_ROWS = 24;
const FRESH_DRAWS = 4; // for how many draws a row is still new: an animation of each would cost more than all else
const deeds = () => import("./deeds.js");

/** Records from a place in the topic, as the tail has them. @param {string} name @param {any} body @param {string} [query] */
async function read(name, body, query = "") {
  const answer = await api("POST", `/v0/topics/${encodeURIComponent(name)}/diff${query}`, { include_tags: true, ...body });
  return answer.ok ? answer.data : { error: answer.error, records: [] };
}

/** @param {{item: any, chosen: boolean, choose: (record: any) => void, fresh: string}} props */
function Row({ item, chosen, choose, fresh }) {
  if (item.kind === "gap") return html`<tr class="gap"><td class="hidep"></td><td colspan="3">${grouped(item.count)} ${item.count === 1 ? "record" : "records"} between ${grouped(item.from)} and ${grouped(item.to)} not shown</td></tr>`;
  const { record } = item, tag = record.$tag;
  return html`<tr class="click ${fresh}" tabindex="0" aria-selected=${chosen} onClick=${() => choose(record)} onKeyDown=${(/** @type {any} */ event) => event.key === "Enter" && choose(record)}>
    <td class="mono">${grouped(record.$seq)}</td><td class="mono muted hidep" title=${exact(record.$ts)}>${clockMs(record.$ts)}</td><td>${tag ? html`<span class="tag">${tag}</span>` : ""}</td>
    <td class="mono">${record.cut ? html`<span class="muted">${bytes(record.cut)}, open to read</span>` : html`<${Json} value=${record.data} />`}</td></tr>`;
}

/** @param {{name: string, query: any, written: number, choose: (record: any) => void, chosen: number}} props */
function Tail({ name, query, written, choose, chosen }) {
  const live = use(tailed), [held, setHeld] = useState(/** @type {any} */ (null)), [from, setFrom] = useAddress("from"), [past, setPast] = useState(/** @type {any} */ (null));
  const go = () => setHeld(held ? null : tailed.peek());
  const seen = useRef(/** @type {number[]} */ ([])), drawn = seen.current;
  if (live?.to_seq !== drawn.at(-1)) seen.current = [...drawn, live?.to_seq ?? 0].slice(-FRESH_DRAWS - 1);
  const age = (/** @type {any} */ item) => held || past || drawn.length <= FRESH_DRAWS ? "" : item.seq > drawn[FRESH_DRAWS - 1] ? "new" : item.seq > drawn[1] ? "newish" : "";
  useEffect(() => {
    const key = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== " " || /^(INPUT|TEXTAREA|BUTTON|SELECT|A)$/.test(document.activeElement?.tagName ?? "")) return;
      event.preventDefault();
      setHeld((/** @type {any} */ old) => (old ? null : tailed.peek()));
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => {
    if (!from) {
      setPast(null);
      return undefined;
    }
    let gone = false;
    const time = /^\d+$/.test(from) ? NaN : Date.parse(from);
    const place = Number.isNaN(time) ? read(name, { from_seq: Math.max(0, Number(from) - 1), limit: 100, tag: query.tag }) : read(name, { limit: 100, tag: query.tag }, `?from_ts=${time}`);
    place.then((found) => gone || setPast(found));
    return () => (gone = true);
  }, [from, query.tag]);
  if (!live?.items) return html`<${Card} title="Records" flush><p class="none">No record yet.</p><//>`;
  const shown = past ? past.records.map((/** @type {any} */ record) => ({ kind: "record", seq: record.$seq, record })) : (held ?? live).items.slice(0, held ? undefined : LIVE_ROWS);
  const fresh = held ? (live.came ?? 0) - (held.came ?? 0) : 0;
  return html`<section class="card" aria-label="Records as they arrive"><header><h2>Records</h2><span class="sub">${past ? `from ${from}, oldest first` : `newest first · sampled to 20 a second of ${rate(written)}; what is left out is counted`}</span><span class="sp"></span>
      <input class="find hidep" placeholder="from seq or time" aria-label="From a seq or a time" value=${from} onChange=${(/** @type {any} */ event) => setFrom(event.target.value.trim())} />
      <input class="find" placeholder="tag, or a*" aria-label="Only this tag; a star at its end matches a prefix" value=${query.tag ?? ""} onChange=${(/** @type {any} */ event) => visit(address({ tag: event.target.value || null }))} />
      ${past ? html`<button class="btn" onClick=${() => setFrom("")}><${Icon} name="radio" small />Live</button>` : html`<button class="btn" aria-pressed=${Boolean(held)} onClick=${go} title="space"><${Icon} name=${held ? "play" : "pause"} small />${held ? `Go on (${count(fresh)} new)` : "Hold"}</button>`}</header>
    <div class="tail" tabindex="0" aria-label="Records" role="region" onScroll=${(/** @type {any} */ event) => event.target.scrollTop > 40 && !held && !past && setHeld(live)}><table>
      <thead><tr><th class="w-seq">seq</th><th class="w-time hidep">time</th><th class="w-tag">tag</th><th>data</th></tr></thead>
      <tbody>${shown.map((/** @type {any} */ item) => html`<${Row} key=${item.kind + item.seq} item=${item} chosen=${item.seq === chosen} fresh=${age(item)} choose=${(/** @type {any} */ record) => { if (!past) setHeld(held ?? live); choose(record); }} />`)}</tbody></table>
      ${past?.error ? html`<p class="none">${past.error.message}</p>` : null}
      ${past?.records.length && !past.caught_up ? html`<p class="none"><button class="btn" onClick=${() => setFrom(String(past.next_from_seq + 1))}>Newer</button></p>` : null}</div></section>`;
}

/** @param {{name: string, seq: number, record: any, close: () => void}} props */
function Opened({ name, seq, record, close }) {
  const [full, setFull] = useState(/** @type {any} */ (null)), [raw, setRaw] = useState(false);
  useEffect(() => {
    if (!record || record.cut) read(name, { from_seq: seq - 1, limit: 1 }).then((answer) => setFull(answer.records[0]?.$seq === seq ? answer.records[0] : { $seq: seq, trouble: answer.error?.message ?? "The topic does not hold it any more." }));
  }, [seq]);
  const shown = record && !record.cut ? record : full?.$seq === seq ? full : null, text = JSON.stringify(shown?.data);
  return html`<${Card} title="Record ${grouped(seq)}" right=${html`<button class="btn s quiet" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>${raw ? "Pretty" : "Raw"}</button><${Copy} text=${text ?? ""} label="Copy the data" /><button class="ib bare" aria-label="Close" onClick=${close}><${Icon} name="x" small /></button>`}>
    ${!shown ? html`<p class="muted">Asking for it.</p>` : shown.trouble ? html`<${Why} of="late">${shown.trouble}<//>` : html`<div class="stack">
      ${raw ? html`<pre class="doc" tabindex="0">${text}</pre>` : html`<${Pretty} value=${shown.data} />`}
      <dl class="kv"><${Pair} name="written"><span class="mono">${exact(shown.$ts)}</span><//>${shown.$tag ? html`<${Pair} name="tag"><span class="mono">${shown.$tag}</span><//>` : null}${shown.$node ? html`<${Pair} name="node"><span class="mono">${shown.$node}</span><//>` : null}${shown.meta ? html`<${Pair} name="meta"><span class="mono">${JSON.stringify(shown.meta)}</span><//>` : null}</dl>
      <${Cmd} text=${command("penstock", "topic", "read", name, "--from-seq", seq - 1, "--limit", 1)} />
      <div class="row"><span class="muted small">As a link</span><${Copy} text=${`${location.origin}${location.pathname}?seq=${seq}`} label="Copy a link to this record" /></div></div>`}<//>`;
}

/** @param {{watchers: any, push: any}} props */
function Readers({ watchers, push }) {
  const all = watchers?.watchers ?? [], routers = all.filter((/** @type {any} */ one) => one.kind === "router"), others = all.filter((/** @type {any} */ one) => one.kind !== "router");
  const standing = push?.topic, slow = watchers?.behind > 0;
  return html`<${Card} title="Who gets it" sub=${watchers?.count == null ? "" : `${some(watchers.count - watchers.routers, "watcher")} · ${some(watchers.routers, "router")}`}>
    ${standing ? html`<${Why} of=${slow ? "late" : "ok"}>${standing.band ? html`<b>Band ${standing.band}.</b> ` : null}${standing.reason}${standing.effective_priority == null ? "" : `. Priority ${standing.effective_priority}.`}<//>` : null}
    ${watchers?.error ? html`<${Missing} of=${watchers} what="Watchers" />` : html`<div class="tops"><div class="watcher head"><span>watcher</span><span class="num">behind</span><span class="num">age</span></div>
    ${others.slice(0, 12).map((/** @type {any} */ one) => html`<div class="watcher" key=${one.id} title="${one.peer ?? ""} ${one.reason}"><span>${one.state === "ok" ? null : html`<${Chip} kind=${one.state === "slow" ? "slow" : ""} icon=${one.state === "slow" ? "triangle-alert" : "clock"}>${one.state}<//> `}${one.name ?? one.peer ?? one.id}</span><span class="num">${count(one.behind)}</span><span class="num soft">${ms(one.behind_ms)}</span></div>`)}
    ${others.length ? null : html`<p class="muted">Nobody watches it.</p>`}
    ${watchers && watchers.count - watchers.routers > 12 ? html`<a class="link" href="/v0/topics/${encodeURIComponent(watchers.topic)}/watchers?limit=1000">All ${watchers.count}</a>` : null}
    ${routers.length ? html`<div class="sep">${routers.map((/** @type {any} */ one) => html`<div class="watcher" key=${one.id} title=${one.reason}><span><${Icon} name="shuffle" small /> ${one.name} to <a class="mono link" href="/topics/${encodeURIComponent(one.dest)}">${one.dest}</a></span><span class="num">${count(one.behind)}</span><span class="num soft">${ms(one.behind_ms)}</span></div>`)}</div>` : null}</div>`}<//>`;
}

/** @param {{topic: any, partition: any}} props */
const Settings = ({ topic, partition }) => html`<${Card} title="Settings" right=${html`<${Deed} scope="admin" kind="s quiet" icon="pencil" act=${() => deeds().then((module) => module.settings(topic))}>Change<//><${Deed} scope="delete" kind="s quiet" icon="trash-2" act=${() => deeds().then((module) => module.removeTopic(topic))}>Remove<//>`}>
  <dl class="kv"><${Pair} name="durability">${topic.config.durability}<//><${Pair} name="keeps">${keeps(topic.config)}<//><${Pair} name="when full">${topic.config.discard === "old" ? "the oldest go" : "writes are refused"}<//>
    <${Pair} name="priority">${topic.config.priority ?? `automatic (${topic.effective_priority})`}<//><${Pair} name="same key again within">${span(topic.config.idempotency_window_ms)} lands once<//>
    <${Pair} name="written last"><${Ago} at=${topic.last_write_ts} /><//>${partition?.partition == null ? null : html`<${Pair} name="log partition">${partition.partition} of ${partition.partitions}, ${partition.phase}<//>${partition.last_group ? html`<${Pair} name="last group">${some(partition.last_group.operations, "write")} in ${ms(partition.last_group.took_ms)}<//>` : null}`}</dl><//>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { topic, push, watchers, partition, history } = twin.sections, name = twin.name, [range] = useAddress("range", RANGES[0][0]);
  const [seq, setSeq] = useAddress("seq"), [record, setRecord] = useState(/** @type {any} */ (null));
  const late = (history?.push_p99_ms ?? []).filter((/** @type {any} */ value) => value != null).at(-1) ?? null;
  const h = useHistory(history, `/v0/topics/${encodeURIComponent(name)}/history`, range);
  if (!topic?.topic) return html`<div class="titlebar"><h1 class="mono">${name}</h1></div><${Empty} title="There is no such topic" text="A topic is made by the first write to it. This page fills by itself." commands=${[command("penstock", "topic", "write", name, '{"meter": 7, "kwh": 1.5}')]}><${Missing} of=${topic} what="This topic" /><//>`;
  const choose = (/** @type {any} */ next) => {
    setRecord(next);
    setSeq(String(next.$seq));
  };
  return html`<div class="titlebar"><h1 class="mono">${name}</h1><${Chip} kind="water">${topic.type}<//><${Chip} kind=${topic.config.durability === "fsync" ? "ok" : ""} icon=${topic.config.durability === "fsync" ? "check" : "info"}>${topic.config.durability}: survives ${survives(topic.config.durability)}<//>
      ${partition?.partition == null ? null : html`<span class="tag hidep">partition ${partition.partition} of ${partition.partitions}</span>`}<span class="sp"></span>
      <${Deed} scope="write" icon="send" act=${() => deeds().then((module) => module.publish(name))}>Publish<//></div>
    <dl class="stats"><${Stat} name="written" value=${count(topic.in_per_s)} unit="/s"><${Spark} values=${history?.in ?? []} width=${120} height=${16} /><//><${Stat} name="read" value=${count(topic.out_per_s)} unit="/s"><${Spark} values=${history?.out ?? []} color="--s2" width=${120} height=${16} /><//>
      <${Stat} name="write to watcher, p99" value=${late === 0 ? "< 1 ms" : ms(late)}>to their turn, all topics: ${ms(push?.latency_us ? push.latency_us.p99 / 1000 : null)}<//>
      <${Stat} name="head" value=${grouped(topic.head_seq)}>earliest ${grouped(topic.earliest_seq)}<//><${Stat} name="kept" value=${bytes(topic.bytes)}>${some(topic.count, "record")} · keeps ${keeps(topic.config)}<//></dl>
    <div class="g31"><div class="col"><${Card} title="Rate" right=${html`<${Legend} rows=${[["--s1", "written", rate(topic.in_per_s)], ["--s2", "read", rate(topic.out_per_s)]]} />`}><${Chart} height=${112} t=${h.t} step=${h.step} span=${spanOf(range)} unit=${count} series=${[{ name: "written", color: "--s1", ...column(h, "in"), area: true }, { name: "read", color: "--s2", ...column(h, "out") }]} /><//>
        <${Tail} name=${name} query=${twin.query ?? {}} written=${topic.in_per_s} choose=${choose} chosen=${Number(seq)} /></div>
      <div class="col">${seq ? html`<${Opened} name=${name} seq=${Number(seq)} record=${record?.$seq === Number(seq) ? record : null} close=${() => setSeq("")} />` : null}
        <${Readers} watchers=${watchers} push=${push} /><${Settings} topic=${topic} partition=${partition} />
        <${Card} title="As a command"><div class="stack"><${Cmd} text=${command("penstock", "topic", "follow", name)} /><${Cmd} text=${command("penstock", "topic", "show", name)} /></div><//></div></div>`;
}

mount({ page: "topics", crumbs: (twin) => [html`<a href="/topics">Topics</a>`, html`<span>${twin.name}</span>`], ranges: RANGES, View });
