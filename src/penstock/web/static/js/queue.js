// A queue: do the workers keep up, what failed?
import { Chart, column, RANGES, spanOf, useHistory } from "./chart.js";
import { backlog, command, count, exact, grouped, ms, rate, some, span } from "./format.js";
import { api, now } from "./live.js";
import { Card, Chip, Cmd, Deed, Empty, html, Icon, Missing, Stat, useAddress, useState, Why } from "./parts.js";
import { mount } from "./shell.js";

const deeds = () => import("./deeds.js");

/** @typedef {{seqs: number[]}|{reason: string}} Which */
/** What a command calls the letters that are chosen. @param {Which} which */
const flags = (which) => ("seqs" in which ? which.seqs.flatMap((seq) => ["--seq", seq]) : ["--reason", which.reason]);
/** @param {{skipped: number[], more: boolean}} data */
const rest = (data) => `${data.skipped.length ? ` ${some(data.skipped.length, "letter")} not there any more, or held by a worker.` : ""}${data.more ? " More of them wait: do it again." : ""}`;

/** Letters become jobs again, all in one commit. @param {any} queue @param {Which} which @param {number} count @param {() => void} after */
const replay = (queue, which, count, after) => deeds().then((module) => module.ask({
  title: `Replay dead letters of ${queue.queue}`, button: `Replay ${some(count, "letter")}`, icon: "refresh-cw", scope: "write",
  text: `${some(count, "letter")} ${count === 1 ? "becomes a job" : "become jobs"} of ${queue.queue} again, all or none, and ${count === 1 ? "leaves" : "leave"} ${queue.dead_letter}. If one dies again, it says so.`,
  line: () => command("penstock", "queue", "redrive", queue.queue, ...flags(which)),
  act: () => api("POST", `/v0/queues/${encodeURIComponent(queue.queue)}/redrive`, which),
  done: (answer) => `${some(answer.data.moved, "letter")} moved to ${answer.data.to}.${rest(answer.data)}`, after,
}));

/** @param {any} queue @param {Which} which @param {number} count @param {() => void} after */
const discard = (queue, which, count, after) => deeds().then((module) => module.ask({
  title: `Discard dead letters of ${queue.queue}`, button: `Discard ${some(count, "letter")}`, icon: "trash-2", bad: true, scope: "delete", type: queue.dead_letter,
  text: `${some(count, "letter")} of ${queue.dead_letter} ${count === 1 ? "goes" : "go"} for ever. This cannot be undone.`,
  line: () => command("penstock", "queue", "discard", queue.queue, ...flags(which)),
  act: () => api("POST", `/v0/queues/${encodeURIComponent(queue.queue)}/discard`, which),
  done: (answer) => `${some(answer.data.discarded, "letter")} went.${rest(answer.data)}`, after,
}));

/** What the address calls the reason of letters without one; nothing stands for all letters. */
const NONE = "-";

/** Letters by reason: fix the cause once, then replay all of it. @param {{queue: any, reason: string, setReason: (reason: string) => void}} props */
const Reasons = ({ queue, reason, setReason }) => html`<div class="row" role="group" aria-label="Reasons">${queue.reasons.map((/** @type {any} */ one) => {
  const value = one.reason ?? NONE;
  return html`<button type="button" class="chip" key=${value} aria-pressed=${reason === value} onClick=${() => setReason(reason === value ? "" : value)}>${one.reason ?? "no reason given"} · ${grouped(one.count)}</button>`;
})}</div>`;

/** @param {{letter: any, queue: any, chosen: boolean, flip: () => void}} props */
const Letter = ({ letter, queue, chosen, flip }) => html`<tr class=${chosen ? "on" : ""}><td><input type="checkbox" aria-label="Choose ${letter.seq}" checked=${chosen} onChange=${flip} /></td>
  <td class="num mono"><a class="link" href="/topics/${encodeURIComponent(queue.dead_letter)}?seq=${letter.seq}">${grouped(letter.seq)}</a></td><td class="hidep">${letter.tag ? html`<span class="tag">${letter.tag}</span>` : ""}</td>
  <td class="num nowrap">${letter.deliveries ?? "–"}${letter.redrives ? html` <${Chip} kind="slow" title="It was replayed ${some(letter.redrives, "time")}, and died again">again · ${letter.redrives}<//>` : null}</td>
  <td class="mono soft"><span class="two">${letter.reason ?? "no reason given"}</span></td><td class="num nowrap" title=${exact(letter.ts)}>${span(now() - letter.ts)}</td></tr>`;

/** @param {{queue: any}} props */
function Letters({ queue }) {
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set())), [reason, setReason] = useAddress("reason");
  const group = queue.reasons.find((/** @type {any} */ one) => (one.reason ?? NONE) === reason);
  const letters = queue.letters.filter((/** @type {any} */ letter) => !group || (letter.reason ?? NONE) === reason);
  const seqs = letters.map((/** @type {any} */ letter) => letter.seq).filter((/** @type {number} */ seq) => chosen.has(seq));
  const flip = (/** @type {number} */ seq) => setChosen(new Set(chosen.has(seq) ? [...chosen].filter((one) => one !== seq) : [...chosen, seq]));
  const all = seqs.length === letters.length && letters.length > 0, clear = () => setChosen(new Set());
  /** What the buttons are about: what is chosen, else all of a reason. @type {[Which, number]|null} */
  const which = seqs.length ? [{ seqs }, seqs.length] : group ? [{ reason: group.reason ?? "" }, group.count] : null;
  if (!queue.dead) return html`<${Card} title="Dead letters" flush><p class="none">None. A job that is delivered ${queue.max_deliveries ? some(queue.max_deliveries, "time") : "without end"} ${queue.max_deliveries ? `without being finished goes to ${queue.dead_letter ?? "a dead letter topic, if one is set"}` : "is never given up"}.</p><//>`;
  return html`<section class="card" aria-label="Dead letters"><header><h2>Dead letters</h2><span class="sub">${letters.length < (group?.count ?? queue.dead) ? `the newest ${letters.length} of ${grouped(group?.count ?? queue.dead)}` : some(letters.length, "letter")}</span><span class="sp"></span>
      ${which ? html`<${Deed} scope="delete" icon="trash-2" act=${() => discard(queue, ...which, clear)}>Discard ${which[1]}<//><${Deed} scope="write" kind="go" icon="refresh-cw" act=${() => replay(queue, ...which, clear)}>Replay ${which[1]}<//>` : null}</header>
    <div class="body"><${Reasons} queue=${queue} reason=${reason} setReason=${setReason} /></div>
    <div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th><input type="checkbox" aria-label="Choose all" checked=${all} onChange=${() => setChosen(new Set(all ? [] : letters.map((/** @type {any} */ letter) => letter.seq)))} /></th><th class="num">seq</th><th class="hidep">tag</th><th class="num">tries</th><th>last reason</th><th class="num">age</th></tr></thead>
      <tbody>${letters.map((/** @type {any} */ letter) => html`<${Letter} key=${letter.seq} letter=${letter} queue=${queue} chosen=${chosen.has(letter.seq)} flip=${() => flip(letter.seq)} />`)}</tbody></table></div></section>`;
}

/** @param {{queue: any}} props */
const Workers = ({ queue }) => html`<${Card} title="Workers" sub="${some(queue.workers.length, "worker")} with leases">
  ${queue.workers.map((/** @type {any} */ one) => html`<div class="watcher" key=${one.node}><span class="mono">${one.node}</span><span class="num">${some(one.leases, "job")}</span><span class="num soft" title=${exact(one.next_deadline)}>${span(one.next_deadline - now())} left</span></div>`)}
  ${queue.workers.length ? null : html`<p class="muted">Nobody holds a lease.</p>`}
  ${queue.leases.length ? html`<div class="sep"><div class="watcher head"><span>leased job</span><span class="num">try</span><span class="num">ends in</span></div>${queue.leases.slice(0, 12).map((/** @type {any} */ one) => html`<div class="watcher" key=${one.seq}><span class="mono">${grouped(one.seq)} <span class="muted">${one.node}</span></span><span class="num">${one.deliveries}</span><span class="num soft">${span(one.deadline - now())}</span></div>`)}</div>` : null}
  <div class="tops"><${Cmd} text=${command("penstock", "queue", "show", queue.queue)} /></div><//>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { queue, history } = twin.sections, [range] = useAddress("range", RANGES[0][0]);
  const h = useHistory(history, `/v0/topics/${encodeURIComponent(twin.name)}/history`, range);
  if (!queue?.queue) return html`<div class="titlebar"><h1 class="mono">${twin.name}</h1></div><${Empty} title="There is no such queue" text="A queue is a topic whose records are jobs for workers. This page fills by itself." commands=${[command("penstock", "topic", "create", twin.name, "--type", "queue"), command("penstock", "topic", "write", twin.name, '{"job": 1}')]}><${Missing} of=${queue} what="This queue" /><//>`;
  const standing = backlog(queue, now());
  return html`<div class="titlebar"><h1 class="mono">${queue.queue}</h1><${Chip} kind="run">queue<//><span class="lead">${standing.text}</span><span class="sp"></span><${Deed} scope="write" icon="send" act=${() => deeds().then((module) => module.publish(queue.queue))}>Publish<//></div>
    <dl class="stats"><${Stat} name="ready" value=${count(queue.ready)}>${queue.oldest_ready_ms == null ? "none waits" : `oldest ${ms(queue.oldest_ready_ms)}`}<//><${Stat} name="leased" value=${count(queue.leased)}>by ${some(queue.workers.length, "worker")} · lease ${span(queue.lease_ms)}<//><${Stat} name="delayed" value=${count(queue.delayed)}>${queue.next_delayed_ms == null ? "none" : `next in ${ms(queue.next_delayed_ms)}`}<//><${Stat} name="finished" value=${count(queue.finished_per_s)} unit="/s">${rate(queue.in_per_s)} come<//><${Stat} name="dead" value=${count(queue.dead)}>${queue.max_deliveries ? `after ${some(queue.max_deliveries, "try", "tries")}` : "never given up"}${queue.dead_letter ? `, in ${queue.dead_letter}` : ""}<//></dl>
    <div class="g31"><div class="col"><${Card} title="Ready and leased" legend=${[["--s1", "ready", count(queue.ready)], ["--s2", "leased", count(queue.leased)]]}><${Chart} height=${120} t=${h.t} step=${h.step} span=${spanOf(range)} unit=${count} series=${[{ name: "ready", color: "--s1", ...column(h, "ready"), area: true }, { name: "leased", color: "--s2", ...column(h, "leased") }]} /><//><${Letters} queue=${queue} /></div>
      <div class="col"><${Card} title="How it keeps up"><${Why} of=${standing.state}>${standing.text}<//><//><${Workers} queue=${queue} />
        <${Card} title="As a topic"><p class="row"><${Icon} name="list-tree" small /><a class="link" href="/topics/${encodeURIComponent(queue.queue)}">Records and settings of ${queue.queue}</a></p><//></div></div>`;
}

mount({ page: "queues", crumbs: (twin) => [html`<a href="/topics?type=queue">Queues</a>`, html`<span>${twin.name}</span>`], ranges: RANGES, View });
