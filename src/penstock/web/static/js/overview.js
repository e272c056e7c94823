// Overview: is everything all right, and if not, where?
import { Chart, column, RANGES, spanOf, useHistory } from "./chart.js";
import { bytes, clock, count, exact, grouped, look, ms, percent, rate, rungKind, RUNGS, some, span, UNKNOWN } from "./format.js";
import { now } from "./live.js";
import { Card, Chip, Cmd, html, Icon, Missing, opens, State, useAddress } from "./parts.js";
import { Glyph, mount } from "./shell.js";

const HISTORY = "/v0/history?series=in,pushed,commit_p50_ms,commit_p99_ms,push_p99_ms,pressure";
const KIND_ICON = { table: "table-2", watcher: "users", queue: "inbox", topic: "list-tree", stream: "radio", ingest: "workflow" };
const EVENT_ICON = {
  rung: "activity", part_lost: "skull", part_back: "check", refresh_failed: "circle-alert", watcher_let_go: "users", snapshot_made: "database",
  tariff_changed: "boxes", partition_failed: "circle-alert", redriven: "refresh-cw", started: "play",
};

/** A line with each fact that it tells as a link. @param {string} line @param {any[]} facts @returns {any} */
function linked(line, facts) {
  const fact = facts.find((one) => line.includes(one.text));
  if (!fact) return line;
  const at = line.indexOf(fact.text);
  return html`${line.slice(0, at)}<a class="link" href=${fact.link || null}>${fact.text}</a>${linked(line.slice(at + fact.text.length), facts)}`;
}

/** @param {{verdict: any, scheduler: any}} props */
function Verdict({ verdict, scheduler }) {
  const level = verdict.level ?? "away";
  return html`<section class="verdict" aria-label="Verdict"><div>
      <h1><${Glyph} level=${level} />${verdict.sentence ?? verdict.error?.message}</h1>
      <p>${linked(verdict.line ?? "", verdict.facts ?? [])}</p></div>
    ${scheduler.error ? null : html`<${Ladder} scheduler=${scheduler} />`}</section>`;
}

/** @param {{scheduler: any}} props */
function Ladder({ scheduler }) {
  const { pressure, rung: name } = scheduler, rung = RUNGS.find((one) => one.name === name) ?? RUNGS[0];
  return html`<div class="ladder" style=${{ "--rung": `var(--${rungKind(name)})` }}>
    <div class="head"><b>${pressure.toFixed(2)}</b> pressure · <span>${rung.name}: ${rung.text}</span></div>
    <div class="rail" role="meter" aria-label="Pressure" aria-valuemin="0" aria-valuemax="1" aria-valuenow=${pressure.toFixed(2)} aria-valuetext="${pressure.toFixed(2)}, ${rung.name}">${RUNGS.map((one) => html`<i key=${one.name} class=${one === rung ? "on" : ""}></i>`)}<b style=${{ "--v": Math.min(1, pressure).toFixed(3) }}></b></div>
    <div class="names" aria-hidden="true">${RUNGS.map((one) => html`<span key=${one.name} class=${one === rung ? "on" : ""}>${one.name}</span>`)}</div></div>`;
}

/** The widest window of each stage that this page has seen: a pipe is drawn open in relation to it. @type {Record<string, number>} */
const widest = {};

/** @param {{name: string, value: any, unit?: string, detail: any, fill: number, open?: number, full?: boolean, gate?: boolean, flows: boolean}} props */
const Cell = ({ name, value, unit, detail, fill, open = 0.9, full, gate, flows }) => html`<div class="cell ${full ? "full" : ""} ${flows ? "" : "still"}">
  <div class="nm">${name}${full ? html`<${Chip} kind="slow">bottleneck<//>` : null}</div>
  <div class="bore"><div class="tube" style=${{ "--o": open.toFixed(3) }}><div class="fill" style=${{ "--f": fill.toFixed(3) }}><div class="flow"></div></div></div>${gate && html`<div class="gate"></div>`}</div>
  <div class="val">${value}${unit && html`<small>${unit}</small>`}</div><div class="dt">${detail}</div></div>`;

/** @param {any} stage @param {string|null} neck */
function stageCell(stage, neck) {
  widest[stage.name] = Math.max(widest[stage.name] ?? 1, stage.window);
  const detail = `${stage.p99_ms == null ? "nothing finished" : `p99 ${ms(stage.p99_ms)}`} · ${percent(stage.occupancy)} of ${stage.window}`;
  return html`<${Cell} key=${stage.name} name=${stage.name} value=${count(stage.rate_per_s)} unit="/s" detail=${stage.held ? "held by a person" : detail}
    fill=${Math.min(1, stage.occupancy)} open=${stage.window / widest[stage.name]} full=${neck === stage.name} gate flows=${stage.rate_per_s > 0} />`;
}

/** @param {{sections: any}} props */
function Pipe({ sections }) {
  const { pipeline, lake, tables } = sections, edge = pipeline.edge ?? {}, moves = pipeline.stages.some((/** @type {any} */ stage) => stage.rate_per_s > 0);
  const kept = (tables?.tables ?? []).filter((/** @type {any} */ table) => ["fresh", "running"].includes(table.state) && table.fresh_ms);
  const oldest = kept.length ? now() - Math.min(...kept.map((/** @type {any} */ table) => table.fresh_ms)) : null;
  const states = Object.entries(tables?.by_state ?? {}).map(([state, n]) => `${n} ${look(state).word}`).join(" · ");
  return html`<section class="card" aria-label="From devices to tables"><header><h2>From devices to tables</h2><span class="sub">height: how far the window is open · fill: how much of it is taken</span><span class="sp"></span><a class="link" href="/pipeline">Pipeline</a></header>
    ${pipeline.state === "away" ? html`<p class="none">${pipeline.text}</p>` : null}
    <div class="pipe"><${Cell} name="devices" value=${count(edge.devices ?? edge.connections)} detail="${count(edge.messages_acked_total)} acked" fill=${0.3} flows=${moves} />
      ${pipeline.stages.map((/** @type {any} */ stage) => stageCell(stage, pipeline.bottleneck))}
      <${Cell} name="lake" value=${count(lake?.rows)} unit="rows" detail=${lake?.snapshot == null ? "no lake" : `snapshot ${grouped(lake.snapshot)}`} fill=${0.3} flows=${moves} />
      <${Cell} name="tables" value=${span(oldest)} unit=${oldest === null ? "" : "old"} detail=${states || "none"} fill=${0.3} flows=${moves} /></div></section>`;
}

/** @param {{history: any, scheduler: any}} props */
function Charts({ history, scheduler }) {
  const [range] = useAddress("range", RANGES[0][0]);
  const h = useHistory(history, HISTORY, range);
  const common = { t: h.t, span: spanOf(range), step: h.step };
  const last = (/** @type {string} */ name) => history?.[name]?.at(-1);
  const p = last("pressure") ?? scheduler?.pressure;
  return html`<div class="g3 lead-wide">
    <${Card} title="Records" legend=${[["--s1", "in", rate(last("in"))], ["--s2", "out", rate(last("pushed"))]]}><${Chart} ...${common} unit=${count} series=${[{ name: "in", color: "--s1", ...column(h, "in"), area: true }, { name: "out", color: "--s2", ...column(h, "pushed") }]} /><//>
    <${Card} title="Latency" legend=${[["--s1", "commit", ms(last("commit_p50_ms"))], ["--s3", "p99", ms(last("commit_p99_ms"))], ["--s2", "push p99", ms(last("push_p99_ms"))]]}><${Chart} ...${common} unit=${ms} series=${[{ name: "commit p50", color: "--s1", ...column(h, "commit_p50_ms"), area: true }, { name: "commit p99", color: "--s3", ...column(h, "commit_p99_ms") }, { name: "push p99", color: "--s2", ...column(h, "push_p99_ms") }]} /><//>
    <${Card} title="Pressure" legend=${[["--water", scheduler?.rung ?? "pressure", p == null ? UNKNOWN : p.toFixed(2)]]}><${Chart} ...${common} max=${1} splits=${[0, 0.2, 0.4, 0.8, 1]} unit=${(/** @type {number} */ v) => v.toFixed(1)} bands=${[[0.4, 0.8, "--slow"], [0.8, 1, "--bad"]]} series=${[{ name: "pressure", color: "--water", ...column(h, "pressure"), area: true }]} /><//></div>`;
}

/** @param {{waiting: any}} props */
function Waiting({ waiting }) {
  const rows = waiting?.waiting;
  return html`<${Card} title="Waiting, and why" sub="longest first" flush right=${rows && waiting.total > rows.length ? html`<a class="link" href="/v0/waiting">All ${waiting.total}</a>` : null}>
    ${!rows ? html`<${Missing} of=${waiting} what="What waits" />` : !rows.length ? html`<p class="none">Nothing waits.</p>` : html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table class="waits"><thead><tr><th>what</th><th class="hidep">state</th><th class="num">for</th><th>why</th></tr></thead><tbody>
    ${rows.map((/** @type {any} */ row) => html`<tr key=${row.kind + row.name + row.reason} ...${opens(() => row.link && location.assign(row.link))}><td class="nowrap"><span class="row one"><${Icon} name=${/** @type {any} */ (KIND_ICON)[row.kind] ?? "info"} small cls="muted" /><a class="mono clip2" href=${row.link || null}>${row.name}</a></span></td><td class="hidep"><${State} of=${row.state} /></td><td class="num nowrap" title=${exact(row.since)}>${row.since == null ? ms(row.for_ms) : span(now() - row.since)}</td><td class="soft"><span class="two" title=${row.help}>${row.text}${row.help && !row.text.includes(row.help) ? `; ${row.help}` : ""}</span></td></tr>`)}</tbody></table></div>`}<//>`;
}

/** @param {{scheduler: any}} props */
function Bands({ scheduler }) {
  if (scheduler.error) return html`<${Card} title="Who is pushed to next" flush><${Missing} of=${scheduler} what="Bands" /><//>`;
  const rows = [...scheduler.bands].reverse(), turns = rows.reduce((sum, row) => sum + row.weight, 0);
  return html`<${Card} title="Who is pushed to next" sub="by band"><div class="band muted small"><span>band</span><span>topics that wait</span><span></span><span class="num">oldest</span></div>
    ${rows.map((row) => html`<div class="band" key=${row.band}><span class="mono">${row.band}</span><span class="meter ${row.oldest_ms > 2000 ? "slow" : ""}"><i style=${{ "--v": Math.min(1, Math.sqrt(row.depth / 900)).toFixed(3) }}></i></span><span class="num">${count(row.depth)}</span><span class="num soft">${row.paused ? "paused" : ms(row.oldest_ms)}</span></div>`)}
    <p class="muted small tops">Of ${turns} turns, ${rows.map((row) => `${row.band} has ${row.weight}`).join(", ")}.</p><//>`;
}

/** @param {{events: any}} props */
const Events = ({ events }) => html`<${Card} title="Lately" flush>
  ${!events?.events ? html`<${Missing} of=${events} what="What happened" />` : !events.events.length ? html`<p class="none">Nothing has happened yet.</p>` : events.events.slice(0, 10).map((/** @type {any} */ event) => html`<div class="event" key=${event.id}><time title=${exact(event.ts)}>${clock(event.ts)}</time><span class="c-${event.level}"><${Icon} name=${/** @type {any} */ (EVENT_ICON)[event.kind] ?? "info"} /></span><span class="soft">${event.text}</span></div>`)}<//>`;

/** @param {{tables: any}} props */
const Ages = ({ tables }) => html`<${Card} title="Tables by age" flush right=${html`<a class="link" href="/tables">Graph</a>`}>
  ${!tables?.tables ? html`<${Missing} of=${tables} what="Tables" />` : !tables.tables.length ? html`<p class="none">No table is kept fresh yet.</p>` : html`<table><thead class="sr"><tr><th>table</th><th>state</th><th>age</th></tr></thead><tbody>${tables.tables.map((/** @type {any} */ table) => html`<tr key=${table.id} ...${opens(() => location.assign(`/tables/${encodeURIComponent(table.name)}`))}><td class="mono clip2"><a href="/tables/${encodeURIComponent(table.name)}">${table.name}</a></td><td><${State} of=${table.state} /></td><td class="num nowrap" title=${exact(table.fresh_ms)}>${table.fresh_ms == null ? "never" : span(now() - table.fresh_ms)}</td></tr>`)}</tbody></table>`}<//>`;

const write = () => import("./deeds.js").then((deeds) => deeds.publish("meters"));
const STEPS = {
  write: `penstock topic write meters '{"meter": 7, "kwh": 1.5}'`,
  follow: "penstock topic follow meters --from-seq 0",
  source: 'penstock table source add meters --schema "meter INT, kwh DOUBLE"',
  table: 'penstock table create totals "SELECT meter, sum(kwh) AS kwh FROM topics.meters GROUP BY meter" --schedule 2s',
};

/** @param {{tables: any}} props */
const Nothing = ({ tables }) => html`<div class="hero"><h1>The server runs. Nothing has been written yet.</h1><p>Three steps show what it does. Each takes a minute; this page fills while you go, so leave it open beside your terminal.</p></div>
  <div class="steps">
    <div class="card"><h2>Write and follow a topic</h2><p class="soft">A topic is made by the first write to it.</p><${Cmd} text=${STEPS.write} /><${Cmd} text=${STEPS.follow} /><button class="btn" onClick=${write}><${Icon} name="send" small />Or write it from here</button></div>
    <div class="card"><h2>Keep a table fresh</h2><p class="soft">A SELECT and a schedule, refreshed on Spark.</p><${Cmd} text=${STEPS.source} /><${Cmd} text=${STEPS.table} /><${Cmd} text="penstock table run" />${tables?.error ? html`<p class="muted">${tables.error.message}</p>` : null}</div>
    <div class="card"><h2>See all of it under load</h2><p class="soft">Meters, ingest, Spark, tables; with keys to burst, hold and kill.</p><${Cmd} text="penstock demo" /><p class="muted">It prints the address of its own dashboard.</p></div></div>
  <p class="muted">Waiting for the first record: <span class="mono">GET /v0/topics</span> shows 0 topics.</p>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { verdict = {}, scheduler = {}, pipeline, history, waiting, events, tables, counts } = twin.sections;
  if (counts?.topics === 0 && !counts.records_live && !tables?.tables?.length && !pipeline?.stages?.length) return html`<${Nothing} tables=${tables} />`;
  return html`<${Verdict} verdict=${verdict} scheduler=${scheduler} />
    ${pipeline?.stages?.length ? html`<${Pipe} sections=${twin.sections} />` : html`<p class="muted small">${counts?.error ? "" : `${some(counts?.topics ?? 0, "topic")} with ${count(counts?.records_live)} records, ${bytes(counts?.bytes_live)}. `}${pipeline?.text ? `${pipeline.text[0].toUpperCase()}${pipeline.text.slice(1)}.` : "No pipeline reports to this server."}</p>`}
    <${Charts} history=${history} scheduler=${scheduler} />
    <div class="g21"><div class="col"><${Waiting} waiting=${waiting} /><${Events} events=${events} /></div><div class="col"><${Bands} scheduler=${scheduler} /><${Ages} tables=${tables} /></div></div>`;
}

mount({ page: "overview", crumbs: () => [html`<span>Overview</span>`], ranges: RANGES, View });
