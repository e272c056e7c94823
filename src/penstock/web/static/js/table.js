// One table: how old, why, and what does a refresh cost?
import { clock, command, count, exact, grouped, ms, some, span, UNKNOWN } from "./format.js";
import { api, now } from "./live.js";
import { Card, Chip, Cmd, Empty, html, Icon, Missing, Pair, Pretty, State, useAddress, useEffect, useRef, useState, Why } from "./parts.js";
import { mount } from "./shell.js";
import { every, modeWord, Outcomes, Progress, Split, Sql, stateOf, TableDeeds } from "./table-view.js";

/** @param {any} value */
const cell = (value) => value === null || value === undefined ? html`<span class="muted">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value);

/** Rows at a snapshot, page by page; those of now are asked for again when the table was refreshed. @param {{name: string, first: any, fresh: number|undefined}} props */
function Rows({ name, first, fresh }) {
  const [offset, setOffset] = useAddress("offset", "0"), [snapshot, setSnapshot] = useAddress("snapshot"), [page, setPage] = useState(/** @type {any} */ (null));
  const path = `/v0/tables/${encodeURIComponent(name)}/rows`, at = snapshot ? `&snapshot=${encodeURIComponent(snapshot)}` : "";
  const began = useRef(fresh);
  useEffect(() => {
    if (offset === "0" && !snapshot && fresh === began.current) setPage(null);
    else api("GET", `${path}?limit=20&offset=${offset}${at}`).then((answer) => setPage(answer.ok ? answer.data : { error: answer.error }));
  }, [offset, snapshot, snapshot ? 0 : fresh]);
  const shown = page ?? first;
  if (!shown?.rows) return html`<${Card} title="Rows" flush><${Missing} of=${shown} what="Rows" />${snapshot ? html`<p class="none"><button class="btn" onClick=${() => setSnapshot("")}>The newest snapshot</button></p>` : null}<//>`;
  return html`<${Card} title="Rows" sub="${grouped(shown.rows_total)} at snapshot ${grouped(shown.snapshot)}" flush right=${html`<input class="find hidep" aria-label="At a snapshot" placeholder="at a snapshot" value=${snapshot} onChange=${(/** @type {any} */ event) => setSnapshot(event.target.value.trim())} /><a class="btn s" href="${path}?format=csv&limit=100000${at}" download="${name}.csv"><${Icon} name="download" small />CSV</a>`}>
    <div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr>${shown.columns.map((/** @type {any} */ column) => html`<th key=${column.name} title=${column.type}>${column.name}</th>`)}</tr></thead><tbody>${shown.rows.map((/** @type {any} */ row, /** @type {number} */ i) => html`<tr key=${i}>${shown.columns.map((/** @type {any} */ column) => html`<td key=${column.name} class="mono nowrap">${cell(row[column.name])}</td>`)}</tr>`)}</tbody></table></div>
    <div class="body row tops"><button class="btn s" disabled=${shown.offset === 0} onClick=${() => setOffset(String(Math.max(0, shown.offset - 20)))}>Before</button><button class="btn s" disabled=${shown.next_offset == null} onClick=${() => setOffset(String(shown.next_offset))}>After</button><span class="muted small">${grouped(shown.offset + 1)} to ${grouped(shown.offset + shown.rows.length)}</span></div><//>`;
}

/** @param {{refreshes: any}} props */
const History = ({ refreshes }) => html`<${Card} title="Refreshes" sub="newest first" flush>${!refreshes?.refreshes?.length ? html`<p class="none">None yet.</p>` : html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>when</th><th>outcome</th><th class="num">took</th><th class="hidep">how</th><th>why</th><th class="num hidep">changed</th><th class="num hidep">snapshot</th></tr></thead><tbody>${refreshes.refreshes.slice(0, 12).map((/** @type {any} */ row, /** @type {number} */ i) => html`<tr key=${i}><td class="nowrap" title=${exact(row.finished_at_ms)}>${clock(row.finished_at_ms)}</td><td><${Chip} kind=${row.outcome === "failed" ? "bad" : row.outcome === "succeeded" ? "ok" : ""} icon=${row.outcome === "failed" ? "circle-alert" : "check"}>${row.outcome}<//></td><td class="num nowrap">${ms(row.finished_at_ms - row.started_at_ms)}</td><td class="hidep nowrap">${row.executed ? modeWord(row.executed) : UNKNOWN}</td><td class="soft"><span class="two">${row.reason_text ?? row.reason}</span></td><td class="num hidep">${grouped(row.delta_rows)}</td><td class="num mono hidep">${row.snapshot == null ? UNKNOWN : html`<a class="link" href="?snapshot=${row.snapshot}">${grouped(row.snapshot)}</a>`}</td></tr>`)}</tbody></table></div>`}<//>`;

/** The plan of a refresh, in the server's words. @param {{explain: any}} props */
const Explained = ({ explain }) => html`<${Card} title="Explain" sub=${explain?.differential?.text ?? ""}>${!explain?.query ? html`<${Missing} of=${explain} what="The plan" />` : html`<div class="stack"><${Why} of=${explain.differential.possible ? "ok" : "waiting"}>${[explain.differential.possible ? "It can be brought up to date from what changed" : "It is computed in full", explain.differential.text].filter(Boolean).join(": ")}<//>${explain.plan ? html`<${Pretty} value=${explain.plan} />` : null}<${Cmd} text="penstock table explain ${explain.table}" /></div>`}<//>`;

/** @param {{twin: any}} props */
function View({ twin }) {
  const { table, why, refreshes, warehouse, rows, explain } = twin.sections;
  if (!table?.name) return html`<div class="titlebar"><h1 class="mono">${twin.name}</h1></div><${Empty} title="There is no such table" text="A table is a SELECT and a schedule. This page fills by itself." commands=${[command("penstock", "table", "create", twin.name, "SELECT …", "--schedule", "2s")]}><${Missing} of=${table} what="This table" /><//>`;
  const state = stateOf(twin.sections), past = refreshes?.refreshes ?? [], unit = table.unit?.members ?? [];
  const fresh = past.find((/** @type {any} */ row) => row.outcome === "succeeded")?.finished_at_ms, running = (warehouse?.running ?? []).find((/** @type {any} */ job) => job.unit_key === table.unit?.key);
  return html`<div class="titlebar"><h1 class="mono">${table.name}</h1><${State} of=${state} /><span class="lead">${fresh ? `Its contents are of ${span(now() - fresh)} ago.` : "It was never refreshed."}</span></div>
    <div class="g31"><div class="col"><${Card} title="Why"><div class="stack"><${Why} of=${state}>${why?.text ?? table.why}<//><${Progress} running=${running} /><${TableDeeds} name=${table.name} paused=${table.status !== "ACTIVE"} /></div><//>
        <${Card} title="What a refresh costs"><div class="stack"><${Split} refresh=${past[0] ?? table.last_refresh} alone=${unit.length < 2} /><${Outcomes} refreshes=${past} /></div><//><${Rows} name=${table.name} first=${rows} fresh=${fresh} /><${History} refreshes=${refreshes} /></div>
      <div class="col"><${Card} title="Definition"><div class="stack"><dl class="kv"><${Pair} name="refreshed">${every(table.schedule)}, ${modeWord(table.mode)}<//><${Pair} name="consistency">${table.consistency}<//><${Pair} name="unit">${unit.length > 1 ? some(unit.length, "table") : "alone"}<//></dl>
          ${unit.length > 1 ? html`<p class="row">${unit.map((/** @type {string} */ name) => html`<a class="tag" key=${name} href="/tables/${encodeURIComponent(name)}">${name}</a>`)}</p>` : null}<${Sql} text=${table.query} /><${Cmd} text="penstock table show ${table.name}" /></div><//>
        <${Card} title="Frontier against heads" flush><table><thead><tr><th>reads</th><th class="num">has seen</th><th class="num">came since</th></tr></thead><tbody>${Object.entries(table.inputs ?? {}).map(([name, place]) => html`<tr key=${name}><td class="mono clip2">${name}</td><td class="num mono">${place === null ? "nothing" : [place].flat().map((/** @type {any} */ one) => grouped(Number(one))).join(" : ")}</td><td class="num">${count(table.behind?.[name])}</td></tr>`)}</tbody></table><//>
        <${Explained} explain=${explain} /></div></div>`;
}

mount({ page: "tables", crumbs: (twin) => [html`<a href="/tables">Tables</a>`, html`<span>${twin.name}</span>`], View });
