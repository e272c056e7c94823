// Tables: what is not fresh, and why?
import { count, exact, grouped, look, ms, some, span, STATES } from "./format.js";
import { focused, layouts, related, shape } from "./graph.js";
import { api, now } from "./live.js";
import { Card, Choice, Empty, html, Icon, Legend, Missing, opens, State, useAddress, useEffect, useRef, useState } from "./parts.js";
import { mount } from "./shell.js";

const WIDTH = 174, HEIGHT = 50, SMALLEST = 0.84;
const ORDER = ["error", "late", "away", "waiting", "running", "fresh", "paused"];
const KIND = { topic: "list-tree", space: "boxes", lake: "database", table: "table-2" };
const COMMANDS = ['penstock table source add meters --schema "meter INT, kwh DOUBLE"', 'penstock table create totals "SELECT meter, sum(kwh) AS kwh FROM topics.meters GROUP BY meter" --schedule 2s', "penstock table run"];
/** What is told where the nodes stand. @type {Set<(laid: import("./graph.js").Laid) => void>} */
const drawn = new Set();
const layOut = layouts(() => new Worker(new URL("./layout.js", import.meta.url), { type: "module" }), (laid) => drawn.forEach((take) => take(laid)), setTimeout.bind(window), clearTimeout.bind(window));

/** Where the nodes stand, laid out beside the page once for each shape of the graph; the last places stay until there are new ones. @param {any} graph */
function useLayout(graph) {
  const [laid, setLaid] = useState(/** @type {any} */ (null)), [failed, setFailed] = useState(""), key = shape(graph);
  useEffect(() => {
    const take = (/** @type {import("./graph.js").Laid} */ told) => {
      if (told.key !== key) return;
      if (told.laid) setLaid(told.laid);
      else setFailed(key);
    };
    drawn.add(take);
    layOut({ key, graph: { nodes: graph.nodes.map((/** @type {any} */ node) => ({ id: node.id, kind: node.kind })), edges: graph.edges, units: graph.units } });
    return () => drawn.delete(take);
  }, [key]);
  return { laid, failed: failed === key };
}

/** @param {any} node */
function facts(node) {
  if (node.kind === "table") return html`<b>${node.fresh_ms == null ? "never" : span(now() - node.fresh_ms)}</b>${node.fresh_ms == null ? "" : " old"} · ${/^\d/.test(node.schedule ?? "") ? `every ${node.schedule}` : (node.schedule ?? "on demand")} · ${node.mode === "FULL" ? "full" : "delta"}`;
  if (node.kind === "lake") return node.rows == null ? "a table of the lake" : `${count(node.rows)} rows`;
  return `${node.kind}${node.seq == null ? "" : ` · seq ${grouped(node.seq)}`}`;
}

/** @param {{node: any, place: any, picked: boolean, pick: () => void, dim: boolean}} props */
function Node({ node, place, picked, pick, dim }) {
  const state = look(node.state), table = node.kind === "table";
  return html`<button type="button" class="node ${table ? "" : "src"} ${dim ? "dim" : ""}" aria-pressed=${picked} onClick=${pick} title=${node.text || node.id}
    style=${{ left: `${place.x - WIDTH / 2}px`, top: `${place.y - HEIGHT / 2}px`, "--c": table ? `var(--${state.kind})` : "var(--line-strong)" }}>
    <span class="t"><span class="mono">${node.name}</span><span class="sr">, ${table ? state.word : node.kind}</span><${Icon} name=${table ? state.icon : /** @type {any} */ (KIND)[node.kind]} /></span><span class="m">${facts(node)}</span>
    ${node.state === "running" && node.progress != null ? html`<span class="prog"><i style=${{ width: `${node.progress * 100}%` }}></i></span>` : null}</button>`;
}

/** A node that the layout does not have yet, or cannot place. @param {{node: any, picked: boolean, pick: () => void}} props */
function Unplaced({ node, picked, pick }) {
  const { kind, icon } = look(node.state), table = node.kind === "table";
  return html`<button type="button" class="chip ${table ? kind : ""}" aria-pressed=${picked} onClick=${pick}><${Icon} name=${table ? icon : /** @type {any} */ (KIND)[node.kind]} />${node.name}</button>`;
}

/** @param {{graph: any, picked: string, pick: (id: string) => void}} props */
function Graph({ graph, picked, pick }) {
  const box = useRef(/** @type {any} */ (null)), [width, setWidth] = useState(0), { laid, failed } = useLayout(graph);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(box.current.clientWidth));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const scale = laid ? Math.max(SMALLEST, Math.min(1.1, (width - 8) / laid.width)) : 1;
  useEffect(() => {
    const place = laid?.nodes[picked];
    if (place) box.current.scrollTo({ left: Math.max(0, place.x * scale - box.current.clientWidth / 2) });
  }, [picked, Boolean(laid)]);
  if (!laid) return html`<div class="graph" ref=${box}><p class="none">${failed ? "The graph cannot be laid out; the list has all tables." : "Laying the graph out."}</p></div>`;
  const lit = picked && laid.nodes[picked] ? related(graph.edges, picked) : null;
  const running = new Set(graph.edges.filter((/** @type {any} */ edge) => edge.running).map((/** @type {any} */ edge) => `${edge.source} ${edge.target}`));
  const unplaced = graph.nodes.filter((/** @type {any} */ node) => !laid.nodes[node.id]);
  const nodes = graph.nodes.filter((/** @type {any} */ node) => laid.nodes[node.id]).sort((/** @type {any} */ a, /** @type {any} */ b) => laid.nodes[a.id].x - laid.nodes[b.id].x || laid.nodes[a.id].y - laid.nodes[b.id].y);
  return html`<div class="graph" ref=${box} tabindex="0" role="group" aria-label="Graph of tables" style=${{ height: `${Math.ceil(laid.height * scale) + 4}px` }}><div class="in" style=${{ width: `${laid.width}px`, height: `${laid.height}px`, transform: `scale(${scale})` }}>
    ${laid.hulls.map((/** @type {any} */ hull) => html`<div class="hull" key=${hull.key} style=${{ left: `${hull.x}px`, top: `${hull.y}px`, width: `${hull.width}px`, height: `${hull.height}px` }}><span>changes in one snapshot</span></div>`)}
    <svg class="edges" width=${laid.width} height=${laid.height} aria-hidden="true">${laid.edges.map((/** @type {any} */ edge) => html`<path key=${`${edge.source} ${edge.target}`} d=${edge.path} class="gedge ${running.has(`${edge.source} ${edge.target}`) ? "run" : ""} ${lit ? (lit.has(edge.source) && lit.has(edge.target) ? "hi" : "dim") : ""}" />`)}</svg>
    ${nodes.map((/** @type {any} */ node) => html`<${Node} key=${node.id} node=${node} place=${laid.nodes[node.id]} picked=${picked === node.id} pick=${() => pick(picked === node.id ? "" : node.id)} dim=${Boolean(lit && !lit.has(node.id))} />`)}</div></div>
    ${unplaced.length ? html`<div class="body"><div class="row"><span class="muted small">${failed ? "Without a place in the graph:" : "Being laid out:"}</span>${unplaced.map((/** @type {any} */ node) => html`<${Unplaced} key=${node.id} node=${node} picked=${picked === node.id} pick=${() => pick(picked === node.id ? "" : node.id)} />`)}</div></div>` : null}`;
}

/** @param {{tables: any[], pick: (id: string) => void, picked: string}} props */
const List = ({ tables, pick, picked }) => html`<div class="body flush scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>table</th><th>state</th><th class="num">age</th><th class="hidep">mode</th><th class="hidep">why</th></tr></thead><tbody>${[...tables].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name)).map((node) => html`<tr key=${node.id} ...${opens(() => pick(node.id))} aria-selected=${picked === node.id}><td class="mono clip2"><a href="/tables/${encodeURIComponent(node.name)}">${node.name}</a></td><td><${State} of=${node.state} /></td><td class="num nowrap" title=${exact(node.fresh_ms)}>${node.fresh_ms == null ? "never" : span(now() - node.fresh_ms)}</td><td class="hidep">${node.mode === "FULL" ? "full" : "delta"}</td><td class="soft hidep"><span class="two">${node.text}</span></td></tr>`)}</tbody></table></div>`;

const SERIES = ["--s1", "--s4", "--s3", "--s2", "--s6"];

/** The jobs of the last minute by worker; killed and failed ones are marked. @param {{jobs: any[], workers: string[]}} props */
function Jobs({ jobs, workers }) {
  const box = useRef(/** @type {any} */ (null)), [width, setWidth] = useState(900);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(box.current.clientWidth));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const at = now(), length = 60e3, left = 104, row = 26, seen = jobs.filter((job) => job.started_at_ms && (job.finished_at_ms ?? at) > at - length);
  const lanes = [...new Set([...workers, ...seen.map((job) => job.worker)])].filter(Boolean).sort(), height = Math.max(1, lanes.length) * row;
  const x = (/** @type {number} */ time) => left + ((time - (at - length)) / length) * (width - left - 4);
  const name = (/** @type {any} */ job) => (job.members?.length > 1 ? `${job.members[0]} and ${job.members.length - 1} others` : (job.members?.[0] ?? job.unit_key));
  const units = [...new Set(seen.map(name))].sort(), color = (/** @type {any} */ job) => SERIES[units.indexOf(name(job)) % SERIES.length];
  const failed = (/** @type {any} */ job) => /FAILED|LOST|CANCEL/.test(job.status);
  const mean = (/** @type {string} */ unit) => { const took = jobs.filter((job) => name(job) === unit && job.started_at_ms && job.finished_at_ms).map((job) => job.finished_at_ms - job.started_at_ms); return took.length ? ms(took.reduce((a, b) => a + b, 0) / took.length) : "–"; };
  return html`<${Card} title="Jobs" sub=${seen.length ? "" : "none in the last minute"} right=${html`<span class="hidep"><${Legend} rows=${units.slice(0, 5).map((unit, i) => [SERIES[i % SERIES.length], unit, mean(unit)])} /></span>`}><div class="gantt" ref=${box}><svg height=${height + 24} viewBox="0 0 ${width} ${height + 24}" role="img" aria-label="${seen.length} jobs in the last minute, ${seen.filter(failed).length} failed">
    ${(width < 560 ? [0, 30, 60] : [0, 15, 30, 45, 60]).map((s) => html`<line key=${s} class="ln" x1=${x(at - s * 1000)} x2=${x(at - s * 1000)} y1="0" y2=${height} /><text class="ax" x=${x(at - s * 1000)} y=${height + 17} text-anchor=${s === 0 ? "end" : s === 60 ? "start" : "middle"}>${s ? `${s} s ago` : "now"}</text>`)}
    ${lanes.map((lane, i) => html`<text key=${lane} x="0" y=${i * row + 17}><title>${lane}</title>${lane.length > 14 ? `…${lane.slice(-13)}` : lane}</text>`)}
    ${seen.map((job) => {
      const a = Math.max(left, x(job.started_at_ms)), b = x(Math.min(job.finished_at_ms ?? at, at)), y = lanes.indexOf(job.worker) * row + 4;
      return html`<g key=${job.job_id}><title>${name(job)}, job ${job.job_id}: ${ms((job.finished_at_ms ?? at) - job.started_at_ms)}, ${job.status.toLowerCase().replaceAll("_", " ")}${job.outcome_detail ? `: ${job.outcome_detail}` : ""}</title><rect x=${a} y=${y} width=${Math.max(3, b - a)} height=${row - 9} rx="3" fill="var(${failed(job) ? "--bad" : color(job)})" opacity=${failed(job) ? 1 : 0.85} />${failed(job) ? html`<path d="M${a + 1} ${y}l${Math.max(3, Math.min(b - a, 9)) - 2} ${row - 9}" stroke="var(--surface)" stroke-width="1.5" />` : null}</g>`;
    })}</svg></div><//>`;
}

/** A node beside the graph: a table whole, as on its own page. @param {{node: any, warehouse: any, close: () => void}} props */
function Detail({ node, warehouse, close }) {
  const [module, setModule] = useState(/** @type {any} */ (null)), [twin, setTwin] = useState(/** @type {any} */ (null)), table = node.kind === "table";
  useEffect(() => {
    if (table) import("./table-view.js").then((found) => setModule({ found }));
  }, [table]);
  useEffect(() => {
    let gone = false;
    if (table) api("GET", `/tables/${encodeURIComponent(node.name)}?format=json`).then((answer) => gone || setTwin({ of: node.id, ...(answer.data ?? { sections: { table: { error: answer.error } } }) }));
    return () => (gone = true);
  }, [node.id, node.fresh_ms, node.state]);
  const sections = twin?.of === node.id ? twin.sections : null;
  const right = html`${table ? html`<a class="link" href="/tables/${encodeURIComponent(node.name)}">Open</a>` : null}<button class="ib bare" aria-label="Close" onClick=${close}><${Icon} name="x" small /></button>`;
  return html`<section class="card" aria-label=${node.name}><header><h2 class="mono">${node.name}</h2><${State} of=${node.state} /><span class="sp"></span>${right}</header><div class="body">
    ${!table ? html`<p class="soft">${facts(node)}</p>${node.kind === "topic" ? html`<a class="link" href="/topics/${encodeURIComponent(node.name)}">Open the topic</a>` : node.kind === "space" ? html`<a class="link" href="/entities?space=${encodeURIComponent(node.name)}">Open the space</a>` : html`<a class="link" href="/lake">Open the lake</a>`}`
      : !module || !sections ? html`<p class="muted">Asking for it.</p>` : sections.table?.error ? html`<${Missing} of=${sections.table} what="This table" />` : html`<${module.found.Summary} sections=${{ ...sections, warehouse }} node=${node} />`}</div></section>`;
}

/** @param {any[]} tables */
function sentence(tables) {
  const n = (/** @type {string} */ state) => tables.filter((table) => table.state === state).length, parts = [];
  if (n("error")) parts.push(`${some(n("error"), "table")} ${n("error") === 1 ? "fails" : "fail"}`);
  if (n("late")) parts.push(`${n("late")} ${n("late") === 1 ? "is" : "are"} late`);
  if (n("away")) parts.push(`nothing refreshes ${n("away") === tables.length ? "them" : n("away")}`);
  if (!parts.length) return `All ${tables.length === 1 ? "is" : `${tables.length} tables are`} fresh or about to be.`;
  const text = `${parts.join(", ")}.`;
  return `${text[0].toUpperCase()}${text.slice(1)}${n("fresh") + n("running") ? " The others are fresh." : ""}`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { graph, warehouse, jobs } = twin.sections, narrow = matchMedia("(max-width: 720px)").matches;
  const [as, setAs] = useAddress("as", narrow ? "list" : "graph"), [picked, pick] = useAddress("table"), [only, setOnly] = useAddress("state"), [all, setAll] = useAddress("all");
  if (!graph?.nodes) return html`<div class="titlebar"><h1>No table is kept fresh here.</h1></div><${Empty} title="Keep a table fresh" text="A SELECT and a schedule, refreshed on Spark by what changed. This page fills by itself." commands=${COMMANDS}><${Missing} of=${graph} what="Tables" /><//>`;
  const tables = graph.nodes.filter((/** @type {any} */ node) => node.kind === "table");
  if (!graph.nodes.length) return html`<div class="titlebar"><h1>There is no table yet.</h1></div><${Empty} title="Keep a table fresh" text="A SELECT and a schedule, refreshed on Spark by what changed. This page fills by itself." commands=${COMMANDS} />`;
  const kept = only ? { ...graph, nodes: graph.nodes.filter((/** @type {any} */ node) => node.kind !== "table" || node.state === only) } : graph;
  const shown = all ? kept : focused(kept, picked || null), node = graph.nodes.find((/** @type {any} */ one) => one.id === picked);
  const busy = (warehouse?.workers ?? []).filter((/** @type {any} */ one) => one.job_id != null).length;
  return html`<div class="titlebar"><h1>${sentence(tables)}</h1><span class="sp"></span><span class="soft">${warehouse?.state ? html`coordinator <b>${warehouse.state.replaceAll("_", " ")}</b> · ${busy} of ${some(warehouse.workers.length, "worker")} busy · ` : null}graph version ${graph.version}</span></div>
    <div class=${node ? "g31" : ""}><div class="col"><section class="card" aria-label="Tables"><header><h2>Tables</h2><span class="row hidep">${Object.keys(STATES).filter((state) => ORDER.includes(state)).map((state) => {
      const { kind, icon, word } = look(state), n = tables.filter((/** @type {any} */ table) => table.state === state).length;
      return html`<button type="button" key=${state} class="chip ${kind}" aria-pressed=${only === state} onClick=${() => setOnly(only === state ? "" : state)}><${Icon} name=${icon} />${word} ${n}</button>`;
    })}</span><span class="sp"></span>${shown.nodes.length < kept.nodes.length ? html`<button class="btn s quiet" onClick=${() => setAll("1")}>Show all ${kept.nodes.length}</button>` : null}<${Choice} label="Shown as" of=${[["graph", "Graph"], ["list", "List"]]} value=${as} set=${setAs} /></header>
      ${as === "graph" ? html`<${Graph} graph=${shown} picked=${picked} pick=${pick} />` : html`<${List} tables=${shown.nodes.filter((/** @type {any} */ one) => one.kind === "table")} pick=${pick} picked=${picked} />`}</section>
      ${jobs?.jobs ? html`<${Jobs} jobs=${jobs.jobs} workers=${(warehouse?.workers ?? []).map((/** @type {any} */ one) => one.worker)} />` : null}</div>
      ${node ? html`<${Detail} node=${node} warehouse=${warehouse} close=${() => pick("")} />` : null}</div>`;
}

mount({ page: "tables", crumbs: () => [html`<span>Tables</span>`], View });
