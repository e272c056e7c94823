// Lake: what is in it?
import { bytes, clock, count, exact, grouped, ms, some, span } from "./format.js";
import { api, now } from "./live.js";
import { Card, Chip, Cmd, Deed, Empty, html, Icon, Missing, opens, Stat, useAddress, useEffect, useRef, useState, Why } from "./parts.js";
import { mount } from "./shell.js";

const SUGGESTED = 8;
const WORDS = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "count(*)", "sum(", "avg(", "min(", "max("];

/** Names that complete the word before the cursor. @param {string} text @param {number} at @param {string[]} names */
export function completions(text, at, names) {
  const word = /[\w.]*$/.exec(text.slice(0, at))?.[0] ?? "";
  if (!word) return { word, found: [] };
  const wanted = word.toLowerCase();
  return { word, found: [...new Set([...names, ...WORDS])].filter((name) => name.toLowerCase().startsWith(wanted) && name !== word).slice(0, SUGGESTED) };
}

/** @param {any} value */
const cell = (value) => value === null || value === undefined ? html`<span class="muted">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value);

/** @param {{names: string[]}} props */
function Query({ names }) {
  const [sql, setSql] = useAddress("sql"), [result, setResult] = useState(/** @type {any} */ (null)), [at, setAt] = useState(0), box = useRef(/** @type {any} */ (null));
  const { word, found } = completions(sql, at, names);
  const run = async () => {
    const answer = await api("POST", "/v0/query", { query: sql });
    setResult(answer.ok ? answer.data : { error: answer.error });
  };
  const take = (/** @type {string} */ name) => {
    const next = sql.slice(0, at - word.length) + name + sql.slice(at);
    setSql(next);
    setAt(at - word.length + name.length);
    box.current?.focus();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  };
  const moved = (/** @type {any} */ event) => setAt(event.target.selectionStart);
  return html`<${Card} title="Ask" sub="a SELECT over one snapshot: 1,000 rows and 10 s at most" right=${html`<${Deed} scope="read" kind="go" icon="play" act=${run}>Run<//>`}><div class="stack">
      <label class="field">SELECT; Ctrl Enter runs it<textarea ref=${box} rows="4" spellcheck=${false} placeholder="SELECT count(*) FROM readings" value=${sql} onInput=${(/** @type {any} */ event) => { setSql(event.target.value); moved(event); }} onClick=${moved} onKeyUp=${moved} onKeyDown=${key}></textarea></label>
      ${found.length ? html`<div class="row" role="group" aria-label="Names that fit">${found.map((name) => html`<button type="button" class="chip" key=${name} onClick=${() => take(name)}>${name}</button>`)}</div>` : null}
      ${result?.error ? html`<div role="alert"><${Why} of="error">${result.error.message}<//></div>` : null}</div>
    ${result?.rows ? html`<div class="scroll tops" tabindex="0" role="region" aria-label="Rows of the answer"><table><thead><tr>${result.columns.map((/** @type {any} */ column) => html`<th key=${column.name} title=${column.type}>${column.name}</th>`)}</tr></thead><tbody>${result.rows.map((/** @type {any} */ row, /** @type {number} */ i) => html`<tr key=${i}>${result.columns.map((/** @type {any} */ column) => html`<td class="mono nowrap" key=${column.name}>${cell(row[column.name])}</td>`)}</tr>`)}</tbody></table></div>
      <p class="muted small tops" role="status">${some(result.rows.length, "row")}${result.truncated ? ", and there are more" : ""}, in ${ms(result.took_ms)} by ${result.engine}, at snapshot ${grouped(result.snapshot)}.</p><${Cmd} text=${result.command} />` : null}<//>`;
}

/** @param {{table: any, snapshot: number}} props */
function Opened({ table, snapshot }) {
  const [files, setFiles] = useState(/** @type {any} */ (null));
  useEffect(() => {
    setFiles(null);
    api("GET", `/v0/lake/tables/${encodeURIComponent(table.name)}/files?snapshot=${snapshot}`).then((answer) => setFiles(answer.ok ? answer.data : { error: answer.error }));
  }, [table.name, snapshot]);
  return html`<${Card} title=${table.name} mono sub="at snapshot ${grouped(snapshot)}" flush>
    <table><thead><tr><th>column</th><th>type</th><th>may be null</th></tr></thead><tbody>${table.columns.map((/** @type {any} */ column) => html`<tr key=${column.name}><td class="mono clip2">${column.name}</td><td class="mono soft">${column.type}</td><td>${column.nullable ? "yes" : "no"}</td></tr>`)}</tbody></table>
    <div class="sep"></div>${!files ? html`<p class="none">Asking for its files.</p>` : !files.files ? html`<${Missing} of=${files} what="Files" />` : html`<p class="none">${some(files.total, "file")}${files.inlined_rows ? `, and ${some(files.inlined_rows, "row")} in the catalog itself` : ""}.</p><div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>file</th><th class="num">rows</th><th class="num">size</th></tr></thead><tbody>${files.files.slice(0, 20).map((/** @type {any} */ file) => html`<tr key=${file.path}><td class="mono clip" title=${file.path}>${file.path.split("/").at(-1)}</td><td class="num nowrap">${count(file.rows)}${file.deleted ? ` less ${count(file.deleted)}` : ""}</td><td class="num nowrap">${bytes(file.bytes)}</td></tr>`)}</tbody></table></div>`}<//>`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { lake, tables, snapshots } = twin.sections, [picked, pick] = useAddress("table");
  if (lake?.snapshot == null) return html`<div class="titlebar"><h1>This server has no lake.</h1></div><${Empty} title="A lake of tables" text="Tables are kept as Parquet files with a catalog; every change is one snapshot of all of them." commands=${["penstock table run", "penstock demo"]}><${Missing} of=${lake} what="The lake" /><//>`;
  const rows = tables?.tables ?? [], chosen = rows.find((/** @type {any} */ table) => table.name === picked);
  return html`<div class="titlebar"><h1>${some(lake.tables, "table")} with ${count(lake.rows)} rows at snapshot ${grouped(lake.snapshot)}.</h1></div>
    <dl class="stats"><${Stat} name="snapshot" value=${grouped(lake.snapshot)}><span title=${exact(lake.snapshot_at)}>${span(now() - lake.snapshot_at)} ago</span><//><${Stat} name="snapshots kept" value=${count(lake.snapshots)}>${lake.kind}<//><${Stat} name="rows" value=${count(lake.rows)}>${some(lake.tables, "table")}<//><${Stat} name="files" value=${count(lake.files)}><span title=${lake.data_path}>${lake.data_path}</span><//><${Stat} name="size" value=${bytes(lake.bytes)}>as Parquet<//></dl>
    <div class="g31"><div class="col"><${Query} names=${[...rows.map((/** @type {any} */ table) => table.name), ...new Set(rows.flatMap((/** @type {any} */ table) => table.columns.map((/** @type {any} */ column) => column.name)))]} />
        <${Card} title="Tables" flush>${!rows.length ? html`<${Missing} of=${tables} what="Tables" />` : html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>table</th><th class="hidep">kind</th><th class="num">rows</th><th class="num hidep">columns</th><th class="num hidep">files</th><th class="num">size</th></tr></thead><tbody>${rows.map((/** @type {any} */ table) => html`<tr key=${table.name} ...${opens(() => pick(table.name === picked ? "" : table.name))} aria-selected=${table.name === picked}><td class="mono clip2">${table.name}</td><td class="hidep">${table.refreshed ? html`<${Chip} kind="run">stream table<//>` : html`<${Chip}>filled<//>`}</td><td class="num">${count(table.rows)}</td><td class="num hidep">${table.columns.length}</td><td class="num hidep">${count(table.files)}</td><td class="num nowrap">${bytes(table.bytes)}</td></tr>`)}</tbody></table></div>`}<//></div>
      <div class="col">${chosen ? html`<${Opened} table=${chosen} snapshot=${lake.snapshot} />` : null}
        <${Card} title="Snapshots" sub="newest first" flush>${!snapshots?.snapshots ? html`<${Missing} of=${snapshots} what="Snapshots" />` : snapshots.snapshots.slice(0, 12).map((/** @type {any} */ one) => html`<div class="event" key=${one.snapshot}><time title=${exact(one.at)}>${clock(one.at)}</time><span class="muted"><${Icon} name="database" /></span><span class="soft"><b class="mono">${grouped(one.snapshot)}</b> ${one.text}${one.author ? `, by ${one.author}` : ""}</span></div>`)}<//>
        <${Card} title="Open it elsewhere"><${Cmd} text=${lake.command} /><//></div></div>`;
}

mount({ page: "lake", crumbs: () => [html`<span>Lake</span>`], View });
