// Cluster: which parts run where, since when, how far behind?
import { bytes, count, exact, ms, some, span, UNKNOWN } from "./format.js";
import { now } from "./live.js";
import { Card, Cmd, Empty, html, Icon, Missing, Pair, State } from "./parts.js";
import { mount } from "./shell.js";

const KIND = { server: "server", ingest: "workflow", tables: "table-2", worker: "boxes" };

/** @param {any[]} parts */
function sentence(parts) {
  const away = parts.filter((part) => part.state === "away"), hosts = new Set(parts.map((part) => part.host).filter(Boolean));
  const where = hosts.size > 1 ? ` on ${hosts.size} machines` : "";
  if (away.length) return `${some(away.length, "part")} of ${parts.length} ${away.length === 1 ? "is" : "are"} away: ${away.map((part) => part.part).join(", ")}.`;
  return `${some(parts.length, "part")}${where} ${parts.length === 1 ? "reports itself" : "report themselves"}, none is away.`;
}

/** @param {{part: any}} props */
const Row = ({ part }) => html`<tr><td class="nowrap"><span class="row one"><${Icon} name=${/** @type {any} */ (KIND)[part.kind] ?? "info"} small cls="muted" /><span class="mono">${part.part}</span></span></td><td><${State} of=${part.state} /></td><td class="soft"><span class="two">${part.text}</span></td><td class="num hidep">${part.behind == null ? UNKNOWN : count(part.behind)}</td><td class="hidep nowrap">${part.host ?? UNKNOWN}${part.pid ? `, pid ${part.pid}` : ""}</td><td class="num nowrap hidep" title=${exact(part.since)}>${part.since ? span(now() - part.since) : UNKNOWN}</td><td class="num nowrap" title=${exact(part.away_since ?? part.seen)}>${part.away_since ? `${span(now() - part.away_since)} ago` : part.seen ? `${span(now() - part.seen)} ago` : "now"}</td></tr>`;

/** @param {{scheduler: any}} props */
function Log({ scheduler }) {
  if (!scheduler?.log) return html`<${Card} title="The log" flush><${Missing} of=${scheduler} what="The log" /><//>`;
  const { log, compaction, partitions } = scheduler;
  const failed = Array.isArray(partitions) ? partitions.filter((one) => one.phase && one.phase !== "serving") : (partitions?.failed ?? []);
  return html`<${Card} title="The log" sub="written by ${log.written_by}"><dl class="kv"><${Pair} name="waits to be written">${some(log.queue_depth, "write")}, ${bytes(log.waiting_bytes)}<//><${Pair} name="failures">${count(log.failures)}${log.last_failure ? `: ${log.last_failure}` : ""}<//>
    ${compaction ? html`<${Pair} name="log since the last snapshot">${bytes(compaction.log_bytes)} of ${bytes(compaction.due_bytes)}<//><${Pair} name="snapshots made">${count(compaction.done_total)}${compaction.running ? ", one is being made" : ""}<//>` : null}<${Pair} name="partitions out of service">${failed.length ? failed.map((/** @type {any} */ one) => one.partition ?? one).join(", ") : "none"}<//></dl><//>`;
}

/** @param {{warehouse: any}} props */
function Warehouse({ warehouse }) {
  if (!warehouse?.state) return html`<${Card} title="Coordinator and workers" flush><${Missing} of=${warehouse} what="The warehouse" /><//>`;
  const { pool } = warehouse;
  return html`<${Card} title="Coordinator and workers" sub=${warehouse.text}><dl class="kv"><${Pair} name="coordinator">${pool?.coordinator ?? "none"}<//><${Pair} name="state">${warehouse.state.replaceAll("_", " ")}<//>${pool?.ticked_ms ? html`<${Pair} name="last looked"><span title=${exact(pool.ticked_ms)}>${span(now() - pool.ticked_ms)} ago</span><//>` : null}${pool?.running_max == null ? null : html`<${Pair} name="runs">${pool.running ?? 0} of ${pool.running_max}<//>`}</dl>
    ${warehouse.workers.map((/** @type {any} */ one) => html`<div class="watcher" key=${one.worker}><span class="mono">${one.worker}</span><span class="num">${one.ready ? "ready" : "starts"}</span><span class="num soft">${one.job_id == null ? "idle" : `job ${one.job_id}`}</span></div>`)}
    ${warehouse.running.map((/** @type {any} */ job) => html`<p class="muted small" key=${job.job_id}>job ${job.job_id} since ${span(now() - job.started_ms)}${job.progress?.left_ms == null ? "" : `, about ${ms(job.progress.left_ms)} left`}</p>`)}<//>`;
}

/** Whether a node is a part of a cluster: a node alone says that it is not.
 * @param {any} nodes */
const isClustered = (nodes) => nodes && nodes.error?.code !== "not_clustered";

/** @param {{node: any}} props */
const Node = ({ node }) => html`<tr><td class="mono nowrap">${node.name}</td><td><${State} of=${node.link === "down" || node.link === "none" ? "away" : node.state} /></td><td class="soft"><span class="two">${node.problem ?? (node.link === "self" ? "this node" : node.link === "up" ? "its link is up" : "no link to it")}</span></td><td class="mono hidep nowrap">${node.address}</td><td class="mono hidep nowrap">${node.url || UNKNOWN}</td></tr>`;

/** @param {{group: any}} props */
const Group = ({ group }) => html`<tr><td class="num">${group.partition}</td><td class="mono nowrap">${group.leader || UNKNOWN}</td><td class="num hidep">${count(group.term)}</td><td class="num">${count(group.committed)}</td><td class="num">${count(group.applied)}</td><td class="soft"><span class="two">${group.stopped ? `stopped: ${group.stopped}` : group.followers.length ? group.followers.map((/** @type {any} */ one) => `${one.name} ${one.lag ? `${some(one.lag, "entry", "entries")} behind (at ${count(one.match)}): ${one.waits}` : "has all"}`).join(" · ") : group.leader ? "its leader knows how far the others are" : "no node leads"}</span></td></tr>`;

/** Which version of log entries is written, and who holds a newer one back.
 * @param {any} entries */
const written = (entries) => (!entries ? "" : `; entries are written in version ${entries.active}${entries.held_by.length ? ` until ${entries.held_by.join(" and ")} can read version ${entries.newest}: upgrade` : ""}`);

/** @param {{nodes: any}} props */
function Nodes({ nodes }) {
  if (!nodes.partitions) return html`<${Card} title="Nodes" flush><${Missing} of=${nodes} what="The cluster" /><//>`;
  return html`<${Card} title="Nodes" sub=${nodes.underway || `cluster ${nodes.cluster}, as ${nodes.member} sees it${written(nodes.entries)}`} flush><div class="scroll" tabindex="0" role="group" aria-label="Nodes"><table><thead><tr><th>node</th><th>state</th><th>link</th><th class="hidep">peers reach it at</th><th class="hidep">clients reach it at</th></tr></thead><tbody>${nodes.members.map((/** @type {any} */ node) => html`<${Node} key=${node.id} node=${node} />`)}</tbody></table></div><//>
    <${Card} title="Partitions" sub="each has a leader of its own" flush><div class="scroll" tabindex="0" role="group" aria-label="Partitions"><table><thead><tr><th class="num">partition</th><th>leader</th><th class="num hidep">term</th><th class="num">committed</th><th class="num">applied here</th><th>followers, where this node leads</th></tr></thead><tbody>${nodes.partitions.map((/** @type {any} */ group) => html`<${Group} key=${group.partition} group=${group} />`)}</tbody></table></div><//>`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { parts, scheduler, warehouse, nodes } = twin.sections, rows = parts?.parts;
  return html`<div class="titlebar"><h1>${rows ? sentence(rows) : "Which parts run is not known."}</h1></div>
    ${!rows ? html`<section class="card"><${Missing} of=${parts} what="Parts" /></section>` : html`<${Card} title="Parts" sub="each reports itself once a second" flush><div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>part</th><th>state</th><th>what it says</th><th class="num hidep">behind</th><th class="hidep">where</th><th class="num hidep">runs for</th><th class="num">seen</th></tr></thead><tbody>${rows.map((/** @type {any} */ part) => html`<${Row} key=${part.part} part=${part} />`)}</tbody></table></div><//>`}
    ${isClustered(nodes) ? html`<${Nodes} nodes=${nodes} />` : null}
    <div class="g2"><${Log} scheduler=${scheduler} /><${Warehouse} warehouse=${warehouse} /></div>
    ${rows?.length === 1 ? html`<${Empty} title="Run the other parts" text="Ingest and tables report themselves here as soon as they run." commands=${["penstock up"]} />` : null}
    <${Card} title="As a command"><${Cmd} text=${isClustered(nodes) ? "penstock cluster status" : "penstock status"} /><//>`;
}

mount({ page: "cluster", crumbs: () => [html`<span>Cluster</span>`], View });
