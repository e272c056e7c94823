// One stream table: how old, why, and what a refresh costs. On its own page and beside the graph.
import { command, exact, grouped, ms, span, UNKNOWN } from "./format.js";
import { api, now } from "./live.js";
import { Cmd, Deed, html, Legend, outcome, Pair, Said, useState, Why } from "./parts.js";

const SERIES = ["--s6", "--s1", "--s3", "--s2", "--s4", "--s5"];
const KEYWORDS = /\b(SELECT|FROM|JOIN|LEFT|RIGHT|FULL|INNER|OUTER|CROSS|ON|GROUP BY|ORDER BY|HAVING|AS|WHERE|WITH|UNION|ALL|DISTINCT|AND|OR|NOT|IN|CASE|WHEN|THEN|ELSE|END|OVER|PARTITION BY|LIMIT|INTERVAL|BETWEEN|IS|NULL)\b/gi;

/** The parts of a query, its keywords apart. @param {{text: string}} props */
export const Sql = ({ text }) => html`<pre class="doc sql" tabindex="0" aria-label="SQL">${String(text ?? "").split(KEYWORDS).map((part, i) => (i % 2 ? html`<span class="kw">${part}</span>` : part))}</pre>`;

/** @param {string} mode */
export const modeWord = (mode) => ({ FULL: "in full", DIFFERENTIAL: "by what changed", AUTO: "as suits", INCREMENTAL: "by what changed" })[mode] ?? String(mode ?? UNKNOWN).toLowerCase();

/** @param {string} schedule */
export const every = (schedule) => (/^\d/.test(schedule ?? "") ? `every ${schedule}` : (schedule ?? "on demand"));

/** Refresh, pause, resume: each waits for the server and shows what it said. @param {{name: string, paused: boolean}} props */
export function TableDeeds({ name, paused }) {
  const [said, setSaid] = useState(/** @type {any} */ (null)), path = `/v0/tables/${encodeURIComponent(name)}`;
  const refresh = async () => {
    setSaid({ ok: true, text: "Asked the coordinator; this waits for it." });
    const answer = await api("POST", `${path}/refresh`, { wait_ms: 60_000 });
    const text = !answer.data?.done ? "Requested; it is not done yet." : answer.data.ok ? "Refreshed." : (answer.data.detail ?? "The refresh failed.");
    setSaid(answer.ok ? { ok: answer.data.ok !== false, text } : outcome(answer, ""));
  };
  const turn = (/** @type {string} */ verb) => async () => {
    const answer = await api("POST", `${path}/${verb}`, {});
    setSaid(outcome(answer, answer.ok ? `It is ${answer.data.status.toLowerCase()} now.` : ""));
  };
  return html`<div class="row"><${Deed} scope="write" kind="go" icon="refresh-cw" act=${refresh}>Refresh now<//>${paused ? html`<${Deed} scope="admin" icon="play" act=${turn("resume")}>Resume<//>` : html`<${Deed} scope="admin" icon="pause" act=${turn("pause")}>Pause<//>`}</div><${Said} said=${said} />`;
}

/** How far a refresh that runs has come. @param {{running: any}} props */
export function Progress({ running }) {
  const progress = running?.progress;
  if (!progress) return null;
  const share = progress.tasks ? progress.tasks_done / progress.tasks : 0;
  return html`<div><span class="meter" role="progressbar" aria-valuenow=${Math.round(share * 100)} aria-valuemin="0" aria-valuemax="100" aria-label="Refresh"><i style=${{ "--v": share.toFixed(3) }}></i></span><p class="muted small">job ${grouped(running.job_id)} on ${running.worker}: task ${progress.tasks_done} of ${progress.tasks}${progress.left_ms == null ? "" : `, about ${ms(progress.left_ms)} left`}</p></div>`;
}

/** A refresh split into its parts; what they leave of its time is waiting, for the others of its unit or for a processor. @param {{refresh: any, alone: boolean}} props */
export function Split({ refresh, alone }) {
  if (!refresh) return html`<p class="muted">It was never refreshed.</p>`;
  const took = refresh.took_ms ?? refresh.finished_at_ms - refresh.started_at_ms;
  const told = Object.entries(refresh.timings_ms ?? {}).map(([name, part]) => /** @type {[string, number]} */ ([name, Number(part)])).filter(([, part]) => part > 0);
  const rest = took - told.reduce((sum, [, part]) => sum + part, 0), parts = told.length && rest > 0 ? [...told, [alone ? "waiting" : "the others of its unit", rest]] : told;
  const total = parts.reduce((sum, [, part]) => sum + Number(part), 0) || 1;
  return html`<div><div class="muted small">last refresh: ${ms(took)}, ${modeWord(refresh.executed)}: ${refresh.reason_text ?? refresh.reason}</div>
    ${parts.length ? html`<div class="split tops" role="img" aria-label=${parts.map(([name, part]) => `${name} ${ms(Number(part))}`).join(", ")}>${parts.map(([name, part], i) => html`<i key=${name} title=${name} style=${{ width: `${(Number(part) / total) * 100}%`, background: `var(${SERIES[i % SERIES.length]})` }}></i>`)}</div><div class="tops"><${Legend} rows=${parts.map(([name, part], i) => [SERIES[i % SERIES.length], name, ms(Number(part))])} /></div>` : null}</div>`;
}

/** @param {{refreshes: any[]}} props newest first */
export function Outcomes({ refreshes }) {
  const rows = refreshes.slice(0, 40).reverse(), took = (/** @type {any} */ row) => row.finished_at_ms - row.started_at_ms, most = Math.max(1, ...rows.map(took));
  const failed = rows.filter((row) => row.outcome === "failed").length;
  const kind = (/** @type {any} */ row) => row.outcome === "failed" ? "bad" : row.outcome === "skipped" ? "skip" : row.executed === "FULL" ? "" : "diff";
  if (!rows.length) return null;
  return html`<div><div class="muted small">last ${rows.length} refreshes: blue by what changed, green in full, red failed</div><div class="hist tops" role="img" aria-label="last ${rows.length} refreshes, ${failed} failed">${rows.map((row, i) => html`<i key=${i} class=${kind(row)} title="${ms(took(row))}, ${row.outcome}, ${modeWord(row.executed)}: ${row.reason_text ?? row.reason}" style=${{ height: `${(took(row) / most) * 100}%` }}></i>`)}</div></div>`;
}

/** @param {any} frontier */
const frontierText = (frontier) => Object.entries(frontier ?? {}).map(([name, place]) => `${name}@${place === null ? "none" : [place].flat().join(":")}`).join(" ");

/** Everything about a table in one column. @param {{sections: any, node: any}} props */
export function Summary({ sections, node }) {
  const { table, why, refreshes, warehouse } = sections, rows = refreshes?.refreshes ?? [];
  const state = node?.state ?? stateOf(sections), unit = table.unit?.members ?? [];
  const running = (warehouse?.running ?? []).find((/** @type {any} */ job) => job.unit_key === table.unit?.key);
  const fresh = node?.fresh_ms ?? rows.find((/** @type {any} */ row) => row.outcome === "succeeded")?.finished_at_ms;
  return html`<div class="stack"><${Why} of=${state}>${why?.text ?? node?.text ?? table.why}<//><${Progress} running=${running} />
    <${TableDeeds} name=${table.name} paused=${table.status !== "ACTIVE"} />
    <dl class="kv"><${Pair} name="contents are of"><span title=${exact(fresh)}>${fresh == null ? "never" : `${span(now() - fresh)} ago`}</span><//><${Pair} name="frontier"><span class="mono">${frontierText(rows[0]?.frontier ?? table.inputs) || UNKNOWN}</span><//>
      ${node?.rows == null ? null : html`<${Pair} name="rows">${grouped(node.rows)}<//>`}<${Pair} name="refreshed">${every(table.schedule)}, ${modeWord(table.mode)}<//><${Pair} name="unit">${unit.length > 1 ? `with ${unit.length - 1} others, in one snapshot` : "alone"}<//>${table.publish ? html`<${Pair} name="published to"><a class="link mono" href="/topics/${encodeURIComponent(table.publish)}">${table.publish}</a><//>` : null}</dl>
    <${Split} refresh=${rows[0] ?? table.last_refresh} alone=${unit.length < 2} /><${Outcomes} refreshes=${rows} /><${Sql} text=${table.query} /><${Cmd} text=${command("penstock", "table", "show", table.name)} /></div>`;
}

/** A table's state, where no graph says it. @param {any} sections */
export function stateOf({ table, why }) {
  if (table.status !== "ACTIVE") return table.status === "ERROR" ? "error" : "paused";
  return ({ in_flight: "running", retry_wait: "error", failed: "error", no_coordinator: "away", up_to_date: "fresh", not_due: "fresh" })[/** @type {string} */ (why?.reason)] ?? "waiting";
}

