// Entities: which spaces are there, and what is in them?
import { grouped, some } from "./format.js";
import { visit } from "./live.js";
import { Ago, Card, Empty, html, Json, Missing, opens, address } from "./parts.js";
import { mount } from "./shell.js";

const COMMANDS = ["penstock topic create tariffs --type space", `penstock entity set tariffs flat '{"price_per_kwh": "0.31"}'`];

/** @param {{spaces: any[], chosen: string}} props */
const Spaces = ({ spaces, chosen }) => html`<${Card} title="Spaces" flush><div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>space</th><th class="num">entities</th><th class="num hidep">seq</th><th class="num">changed</th></tr></thead><tbody>${spaces.map((one) => {
  const name = one.space ?? one.name;
  return html`<tr key=${name} ...${opens(() => visit(address({ space: name, prefix: null })))} aria-selected=${name === chosen}><td class="mono clip2"><a href="/entities?space=${encodeURIComponent(name)}">${name}</a></td><td class="num">${grouped(one.entities)}</td><td class="num mono hidep">${grouped(one.seq)}</td><td class="num nowrap"><${Ago} at=${one.last_commit ?? one.last_commit_ts} /></td></tr>`;
})}</tbody></table></div><//>`;

/** @param {{space: string, entities: any, query: any}} props */
function Entities({ space, entities, query }) {
  const link = (/** @type {string} */ id) => `/entities/${encodeURIComponent(space)}/${encodeURIComponent(id)}`;
  return html`<section class="card" aria-label="Entities of ${space}"><header><h2 class="mono">${space}</h2><span class="sub">${entities?.head == null ? "" : `as of seq ${grouped(entities.head)}`}</span><span class="sp"></span><input class="find" placeholder="Ids that begin with" aria-label="Ids that begin with" value=${query.prefix ?? ""} onChange=${(/** @type {any} */ event) => visit(address({ prefix: event.target.value || null }))} /></header>
    ${!entities?.entities ? html`<${Missing} of=${entities} what="Entities" />` : !entities.entities.length ? html`<p class="none">No entity begins like this.</p>` : html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th>entity</th><th class="num">seq</th><th>document</th></tr></thead><tbody>${entities.entities.map((/** @type {any} */ row) => html`<tr key=${row.entity} ...${opens(() => location.assign(link(row.entity)))}><td class="mono clip2"><a href=${link(row.entity)}>${row.entity}</a></td><td class="num mono">${grouped(row.seq)}</td><td class="mono clip"><${Json} value=${row.doc} /></td></tr>`)}</tbody></table></div>`}
    ${entities?.next ? html`<p class="none">More than ${entities.entities.length}: narrow the list with a prefix.</p>` : null}</section>`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { spaces, entities } = twin.sections, query = twin.query ?? {}, rows = spaces?.spaces;
  if (!rows) return html`<div class="titlebar"><h1>Entities</h1></div><section class="card"><${Missing} of=${spaces} what="Spaces" /></section>`;
  if (!rows.length) return html`<div class="titlebar"><h1>There is no space yet.</h1></div><${Empty} title="Keep documents that several people change" text="A space holds entities: JSON documents, changed by commits that notice each other. This page fills by itself." commands=${COMMANDS} />`;
  const all = rows.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.entities ?? 0), 0);
  return html`<div class="titlebar"><h1>${some(all, "entity", "entities")} in ${rows.length < spaces.count ? `the first ${grouped(rows.length)} of ` : ""}${some(spaces.count, "space")}.</h1></div>
    <div class=${query.space ? "g2 tall" : ""}><${Spaces} spaces=${rows} chosen=${query.space ?? ""} />${query.space ? html`<${Entities} space=${query.space} entities=${entities} query=${query} />` : null}</div>`;
}

mount({ page: "entities", crumbs: () => [html`<span>Entities</span>`], View });
