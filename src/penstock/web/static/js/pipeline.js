// Pipeline: what holds it up, and for how long?
import { Chart, SHORT_RANGES, spanOf } from "./chart.js";
import { bytes, clock, count, exact, ms, percent, rate, span } from "./format.js";
import { api, now } from "./live.js";
import { extended, gapIn, KEPT_POINTS } from "./reduce.js";
import { Card, Chip, Deed, Empty, html, Legend, Missing, outcome, Said, useAddress, useEffect, useState, Why } from "./parts.js";
import { mount } from "./shell.js";

/** A stage keeps its colour on all pages. @type {Record<string, string>} */
const COLORS = { accept: "--s6", reassemble: "--s3", parse: "--s1", evaluate: "--s4", store: "--s2" };
const color = (/** @type {string} */ stage) => COLORS[stage] ?? "--s5";

/** @param {{stage: any, neck: boolean, say: (said: any) => void}} props */
function Stage({ stage, neck, say }) {
  const verb = stage.held ? "go" : "hold";
  const press = async () => {
    const answer = await api("POST", `/v0/pipeline/stages/${encodeURIComponent(stage.name)}/${verb}`, {});
    say(outcome(answer, answer.data?.text ?? ""));
  };
  return html`<section class="card stage ${neck ? "neck" : ""}" aria-label=${stage.name}><div class="h"><h2>${stage.name}</h2>${neck ? html`<${Chip} kind="slow" icon="triangle-alert">bottleneck<//>` : stage.held ? html`<${Chip} icon="pause">held<//>` : null}<span class="sp"></span>
      ${stage.may_hold ? html`<${Deed} scope="admin" kind="s quiet" icon=${stage.held ? "play" : "pause"} label="${stage.held ? "Let go on" : "Hold"} ${stage.name}" act=${press}><span class="sr">${stage.held ? "Go on" : "Hold"}</span><//>` : null}</div>
    <div class="occ ${stage.occupancy > 0.9 ? "full" : ""}" role="meter" aria-valuenow=${Math.round(stage.occupancy * 100)} aria-valuemin="0" aria-valuemax="100" aria-label="${stage.name}: share of the window that is taken"><i style=${{ "--v": Math.min(1, stage.occupancy).toFixed(3) }}></i><span>${percent(stage.occupancy)}</span><em>of ${stage.window} slots</em></div>
    <div class="line"><span>finished</span><b>${rate(stage.rate_per_s)}</b></div><div class="line"><span>p50 / p99</span><b>${ms(stage.p50_ms)} / ${ms(stage.p99_ms)}</b></div>
    <div class="note">${stage.held ? "held by a person" : stage.stuck_ms > 1000 ? `has finished nothing for ${span(stage.stuck_ms)}` : stage.note}</div></section>`;
}

/** The bottleneck of each second. @param {{history: any, length: number}} props */
function Ribbon({ history, length }) {
  const from = (history.t.at(-1) ?? 0) - length, first = Math.max(0, history.t.findIndex((/** @type {number} */ at) => at >= from));
  const necks = history.bottleneck.slice(first), n = necks.length;
  /** @type {{stage: string|null, at: number, n: number}[]} */
  const runs = [];
  necks.forEach((/** @type {string|null} */ stage, /** @type {number} */ at) => {
    const last = runs.at(-1);
    if (last && last.stage === stage) last.n++;
    else runs.push({ stage, at, n: 1 });
  });
  const shares = Object.entries(necks.reduce((/** @type {any} */ sum, /** @type {any} */ stage) => stage ? { ...sum, [stage]: (sum[stage] ?? 0) + 1 } : sum, {})).sort((a, b) => Number(b[1]) - Number(a[1]));
  const rows = /** @type {[string, string, string][]} */ (shares.map(([stage, seconds]) => [color(stage), stage, percent(Number(seconds) / n)]));
  return html`<${Card} title="What held the pipeline up" sub="the bottleneck of each second; grey: nothing did" right=${html`<${Legend} rows=${rows} />`}><div class="ribbon"><svg viewBox="0 0 ${Math.max(1, n)} 20" preserveAspectRatio="none" role="img" aria-label=${rows.map(([, stage, share]) => `${stage} ${share}`).join(", ") || "nothing"}>${runs.map((run) => html`<rect key=${run.at} x=${run.at} y="0" width=${run.n + 0.2} height="20" fill=${run.stage ? `var(${color(run.stage)})` : "var(--sunken)"} />`)}</svg><div class="ax"><span>${n ? `${span(now() - history.t[first])} ago` : ""}</span><span>now</span></div></div><//>`;
}

/** History of the range: the twin has two minutes, the rest is asked for once, and again where points are missing. @param {any} section @param {string} range */
function usePipelineHistory(section, range) {
  const [older, setOlder] = useState(/** @type {any} */ (null)), reaches = spanOf(range) <= 120e3;
  const whole = reaches || !older || !section?.t ? section : extended(older, section, KEPT_POINTS), gap = reaches || !older ? 0 : gapIn(whole?.t ?? [], 1000);
  useEffect(() => {
    let gone = false;
    if (!reaches) api("GET", "/v0/pipeline/history").then((answer) => gone || !answer.ok || setOlder((/** @type {any} */ old) => extended(old, answer.data, KEPT_POINTS)));
    return () => (gone = true);
  }, [range, gap]);
  return whole;
}

/** @param {{pipeline: any, history: any, range: string}} props */
function Charts({ pipeline, history, range }) {
  const names = pipeline.stages.map((/** @type {any} */ stage) => stage.name), late = names.length > 2 ? names.slice(2) : names, common = { t: history.t, span: spanOf(range), height: 164 };
  const of = (/** @type {string[]} */ some, /** @type {string} */ column, more = {}) => some.map((name) => ({ name, color: color(name), values: history.stages[name]?.[column] ?? [], ...more }));
  const now_ = (/** @type {string[]} */ some, /** @type {(stage: any) => string} */ text) => some.map((name) => [color(name), name, text(pipeline.stages.find((/** @type {any} */ stage) => stage.name === name))]);
  const ends = [names[0], names.at(-1)];
  return html`<div class="g2">
    <${Card} title="Windows" sub="slots" legend=${now_(late, (stage) => String(stage.window))}><${Chart} ...${common} unit=${(/** @type {number} */ v) => String(Math.round(v))} series=${of(late, "window", { step: true })} /><//>
    <${Card} title="p99 of each stage" legend=${now_(late, (stage) => ms(stage.p99_ms))}><${Chart} ...${common} unit=${ms} series=${of(late, "p99_ms")} /><//>
    <${Card} title="Occupancy" legend=${now_(names, (stage) => percent(stage.occupancy))}><${Chart} ...${common} max=${1} unit=${percent} bands=${[[0.9, 1, "--slow"]]} series=${of(names, "occupancy")} /><//>
    <${Card} title="Rate through each stage" legend=${now_(ends, (stage) => rate(stage.rate_per_s))}><${Chart} ...${common} unit=${count} series=${[...of([ends[0]], "rate_per_s", { area: true }), ...of([ends[1]], "rate_per_s")]} /><//></div>`;
}

/** @param {{pipeline: any}} props */
function Memory({ pipeline }) {
  const { memory } = pipeline;
  if (!memory) return html`<${Card} title="Memory of all windows"><p class="muted">The pipeline does not tell.</p><//>`;
  const rows = Object.entries(memory.by_stage).map(([name, size]) => [color(name), name, bytes(Number(size))]);
  const text = `${bytes(memory.used_bytes)} of ${bytes(memory.budget_bytes)}`;
  return html`<${Card} title="Memory of all windows" sub=${text}><div class="budget" role="img" aria-label=${text}>${Object.entries(memory.by_stage).map(([name, size]) => html`<i key=${name} title=${name} style=${{ width: `${(Number(size) / memory.budget_bytes) * 100}%`, background: `var(${color(name)})` }}></i>`)}</div><div class="tops"><${Legend} rows=${rows} /></div><//>`;
}

/** @param {{decisions: any[]}} props */
const Decisions = ({ decisions }) => html`<${Card} title="Decisions" sub="what the planner did, newest first" flush>${decisions.length ? decisions.slice(0, 8).map((one, i) => html`<div class="event" key=${i}><time title=${exact(one.at)}>${clock(one.at)}</time><i class="sq" style=${{ background: `var(${color(one.stage)})` }}></i><span class="soft"><b>${one.stage}</b> ${one.action} to ${one.window}, ${one.reason}</span></div>`) : html`<p class="none">None yet.</p>`}<//>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { pipeline, history } = twin.sections, [range] = useAddress("range", SHORT_RANGES[0][0]), [said, setSaid] = useState(/** @type {any} */ (null));
  const shown = usePipelineHistory(history, range);
  if (!pipeline?.state || pipeline.state === "none" || !pipeline.stages.length) return html`<div class="titlebar"><h1>No pipeline reports to this server.</h1></div>
    ${pipeline?.error ? html`<section class="card"><${Missing} of=${pipeline} what="The pipeline" /></section>` : null}
    <${Empty} title="Take in data from devices" text="The pipeline accepts frames, puts messages together, parses, evaluates and stores them. It reports itself here once a second." commands=${["penstock ingest run", "penstock demo"]} />`;
  const neck = pipeline.bottleneck, edge = pipeline.edge ?? {}, held = pipeline.stages.filter((/** @type {any} */ stage) => stage.held).map((/** @type {any} */ stage) => stage.name).join(" and ");
  const title = pipeline.state === "away" ? "The pipeline is away." : pipeline.state === "ended" ? "The pipeline has ended." : held ? `${held} is held by hand.` : neck ? `${neck} is the bottleneck.` : "Nothing holds the pipeline up.";
  return html`<div class="titlebar"><h1>${title}</h1><span class="lead">${pipeline.behind == null ? pipeline.text : `${count(pipeline.behind)} messages are durable and not in the lake yet${pipeline.behind_ms == null ? "." : `: ${ms(pipeline.behind_ms)} of work.`}`}</span><span class="sp"></span><span class="soft"><b>${count(edge.devices ?? edge.connections)}</b> devices · <b>${count(edge.messages_acked_total)}</b> acknowledged</span></div>
    ${pipeline.away_since ? html`<${Why} of="away">No report since ${clock(pipeline.away_since)}, ${span(now() - pipeline.away_since)} ago. What is shown is of then.<//>` : null}
    ${pipeline.trouble ? html`<${Why} of="late">${pipeline.trouble}<//>` : null}<${Said} said=${said} />
    <div class="stages">${pipeline.stages.map((/** @type {any} */ stage) => html`<${Stage} key=${stage.name} stage=${stage} neck=${neck === stage.name} say=${setSaid} />`)}</div>
    ${shown?.t?.length ? html`<${Ribbon} history=${shown} length=${spanOf(range)} /><${Charts} pipeline=${pipeline} history=${shown} range=${range} />` : html`<${Missing} of=${history} what="History" />`}
    <div class="g2"><${Memory} pipeline=${pipeline} /><${Decisions} decisions=${pipeline.decisions ?? []} /></div>`;
}

mount({ page: "pipeline", crumbs: () => [html`<span>Pipeline</span>`], ranges: SHORT_RANGES, View });
