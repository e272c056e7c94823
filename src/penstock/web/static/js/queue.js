// A queue: do the workers keep up, what failed?
import { Chart, SHORT_RANGES, spanOf } from "./chart.js";
import { backlog, command, count, exact, grouped, ms, rate, some, span } from "./format.js";
import { api, now } from "./live.js";
import { Card, Chip, Cmd, Deed, html, Icon, Missing, Stat, useAddress, useCollected, useState, Why } from "./parts.js";
import { mount } from "./shell.js";

const deeds = () => import("./deeds.js");

/** A log drops its oldest records only: what is discarded is all up to the newest that is chosen. @param {any} queue @param {number[]} chosen */
function discard(queue, chosen) {
  const last = Math.max(...chosen), gone = queue.letters.filter((/** @type {any} */ letter) => letter.seq <= last).length;
  return deeds().then((module) => module.ask({
    title: `Discard dead letters of ${queue.queue}`, button: `Discard ${some(gone, "letter")}`, icon: "trash-2", bad: true, scope: "delete", type: queue.dead_letter,
    text: `Every record of ${queue.dead_letter} up to seq ${grouped(last)} goes: ${some(gone, "letter")} of those shown. This cannot be undone.`,
    line: () => command("penstock", "topic", "delete", queue.dead_letter, "--before-seq", last + 1),
    act: () => api("POST", `/v0/topics/${encodeURIComponent(queue.dead_letter)}/delete`, { before_seq: last + 1 }),
    done: (answer) => `${some(answer.data.deleted, "record")} went.`,
  }));
}

/** @param {{queue: any}} props */
function Letters({ queue }) {
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set()));
  const letters = queue.letters;
  const seqs = letters.map((/** @type {any} */ letter) => letter.seq).filter((/** @type {number} */ seq) => chosen.has(seq));
  const flip = (/** @type {number} */ seq) => setChosen(new Set(chosen.has(seq) ? [...chosen].filter((one) => one !== seq) : [...chosen, seq]));
  const all = seqs.length === letters.length && letters.length > 0;
  if (!queue.dead) return html`<${Card} title="Dead letters" flush><p class="none">None. A job that is delivered ${queue.max_deliveries ? `${queue.max_deliveries} times` : "without end"} ${queue.max_deliveries ? `without being finished goes to ${queue.dead_letter ?? "a dead letter topic, if one is set"}` : "is never given up"}.</p><//>`;
  return html`<section class="card" aria-label="Dead letters"><header><h2>Dead letters</h2><span class="sub">the newest ${letters.length} of ${grouped(queue.dead)}</span><span class="sp"></span>
      ${seqs.length ? html`<${Deed} scope="delete" icon="x" act=${() => discard(queue, seqs)}>Discard<//>` : null}</header>
    <div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th><input type="checkbox" aria-label="Choose all" checked=${all} onChange=${() => setChosen(new Set(all ? [] : letters.map((/** @type {any} */ letter) => letter.seq)))} /></th><th class="num">seq</th><th class="hidep">tag</th><th class="num">tries</th><th class="num">age</th></tr></thead>
      <tbody>${letters.map((/** @type {any} */ letter) => html`<tr key=${letter.seq} class=${chosen.has(letter.seq) ? "on" : ""}><td><input type="checkbox" aria-label="Choose ${letter.seq}" checked=${chosen.has(letter.seq)} onChange=${() => flip(letter.seq)} /></td><td class="num mono"><a class="link" href="/topics/${encodeURIComponent(queue.dead_letter)}?seq=${letter.seq}">${grouped(letter.seq)}</a></td><td class="hidep">${letter.tag ? html`<span class="tag">${letter.tag}</span>` : ""}</td><td class="num nowrap">${letter.deliveries ?? "–"}</td><td class="num nowrap" title=${exact(letter.ts)}>${span(now() - letter.ts)}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {{queue: any}} props */
const Workers = ({ queue }) => html`<${Card} title="Workers" sub="${some(queue.workers.length, "worker")} with leases">
  ${queue.workers.map((/** @type {any} */ one) => html`<div class="watcher" key=${one.node}><span class="mono">${one.node}</span><span class="num">${some(one.leases, "job")}</span><span class="num soft" title=${exact(one.next_deadline)}>${span(one.next_deadline - now())} left</span></div>`)}
  ${queue.workers.length ? null : html`<p class="muted">Nobody holds a lease.</p>`}
  ${queue.leases.length ? html`<div class="sep"><div class="watcher head"><span>leased job</span><span class="num">try</span><span class="num">ends in</span></div>${queue.leases.slice(0, 12).map((/** @type {any} */ one) => html`<div class="watcher" key=${one.seq}><span class="mono">${grouped(one.seq)} <span class="muted">${one.node}</span></span><span class="num">${one.deliveries}</span><span class="num soft">${span(one.deadline - now())}</span></div>`)}</div>` : null}
  <div class="tops"><${Cmd} text=${command("penstock", "queue", "show", queue.queue)} /></div><//>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { queue } = twin.sections, [range] = useAddress("range", SHORT_RANGES[0][0]);
  const series = useCollected(twin.at, { ready: queue?.ready ?? null, leased: queue?.leased ?? null });
  if (!queue?.queue) return html`<div class="titlebar"><h1 class="mono">${twin.name}</h1></div><section class="card"><${Missing} of=${queue} what="This queue" /></section>`;
  const standing = backlog(queue, now());
  return html`<div class="titlebar"><h1 class="mono">${queue.queue}</h1><${Chip} kind="run">queue<//><span class="lead">${standing.text}</span><span class="sp"></span><${Deed} scope="write" icon="send" act=${() => deeds().then((module) => module.publish(queue.queue))}>Publish<//></div>
    <dl class="stats"><${Stat} name="ready" value=${count(queue.ready)}>${queue.oldest_ready_ms == null ? "none waits" : `oldest ${ms(queue.oldest_ready_ms)}`}<//><${Stat} name="leased" value=${count(queue.leased)}>by ${some(queue.workers.length, "worker")} · lease ${span(queue.lease_ms)}<//><${Stat} name="delayed" value=${count(queue.delayed)}>${queue.next_delayed_ms == null ? "none" : `next in ${ms(queue.next_delayed_ms)}`}<//><${Stat} name="finished" value=${count(queue.finished_per_s)} unit="/s">${rate(queue.in_per_s)} come<//><${Stat} name="dead" value=${count(queue.dead)}>${queue.max_deliveries ? `after ${queue.max_deliveries} tries` : "never given up"}${queue.dead_letter ? `, in ${queue.dead_letter}` : ""}<//></dl>
    <div class="g31"><div class="col"><${Card} title="Ready and leased" legend=${[["--s1", "ready", count(queue.ready)], ["--s2", "leased", count(queue.leased)]]}><${Chart} height=${120} t=${series.t} span=${spanOf(range)} unit=${count} series=${[{ name: "ready", color: "--s1", values: series.ready ?? [], area: true }, { name: "leased", color: "--s2", values: series.leased ?? [] }]} /><//><${Letters} queue=${queue} /></div>
      <div class="col"><${Card} title="How it keeps up"><${Why} of=${standing.state}>${standing.text}<//><//><${Workers} queue=${queue} />
        <${Card} title="As a topic"><p class="row"><${Icon} name="list-tree" small /><a class="link" href="/topics/${encodeURIComponent(queue.queue)}">Records and settings of ${queue.queue}</a></p><//></div></div>`;
}

mount({ page: "queues", crumbs: (twin) => [html`<a href="/topics?type=queue">Queues</a>`, html`<span>${twin.name}</span>`], ranges: SHORT_RANGES, View });
