// An entity: what is it now, who changed it, did my change land?
import { clock, command, exact, grouped, ms, some, span } from "./format.js";
import { api, now } from "./live.js";
import { changes, patchOf, pointer, rebased, versions } from "./merge.js";
import { Card, Chip, Choice, Cmd, Deed, html, Icon, Missing, Pretty, useAddress, useEffect, useRef, useState, Why } from "./parts.js";
import { mount } from "./shell.js";

const TRIES = 8;
const session = `web-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
let presses = 0;

/** A value as it is typed: a text as itself, all else as JSON. @param {any} value */
const typed = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** What was typed, in the kind that it had before. @param {string} text @param {any} before */
function read(text, before) {
  if (typeof before === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @typedef {{who: string, text: string, kind: string, icon: string}} Step */

/**
 * Commit a change until it lands: each refusal is shown, and the change made again on what is there.
 * @param {string} space @param {string} id @param {{seq: number, doc: any}} base @param {any} mine @param {(step: Step) => void} say
 */
async function commit(space, id, base, mine, say) {
  const path = `/v0/spaces/${encodeURIComponent(space)}`, began = performance.now();
  // A number for each press: what an answer that was lost belongs to is not what is asked for now.
  const localSeq = ++presses;
  let from = base, wanted = mine;
  for (let attempt = 1; attempt <= TRIES; attempt++) {
    const patch = patchOf(from.doc, wanted), keys = Object.keys(patch);
    if (!keys.length) return { ok: true, text: "Nothing is left to change: what you wanted is there.", seq: from.seq };
    say({ who: "you", text: `made from seq ${grouped(from.seq)}: ${keys.map((key) => `${key} ${typed(from.doc[key])} to ${typed(wanted[key])}`).join(", ")}`, kind: "run", icon: "send" });
    const body = { session, local_seq: localSeq, writes: [{ entity: id, patch }], reads: keys.map((key) => ({ entity: id, seq: from.seq, path: pointer(key) })) };
    const answer = await api("POST", `${path}/commits`, body);
    if (answer.ok) {
      say({ who: "server", text: `accepted as seq ${grouped(answer.data.seq)}`, kind: "ok", icon: "check" });
      return { ok: true, text: `It landed in ${attempt === 1 ? "one try" : `${attempt} tries`} and ${ms(performance.now() - began)}.${attempt > 1 ? " Both changes are in; nobody's was lost." : ""}`, seq: answer.data.seq };
    }
    say({ who: "server", text: `refused: ${answer.error?.message}`, kind: "slow", icon: "triangle-alert" });
    if (answer.status !== 409) return { ok: false, text: answer.error?.message ?? "" };
    const current = await api("GET", `${path}/entities/${encodeURIComponent(id)}`);
    if (!current.ok) return { ok: false, text: `It cannot converge: ${current.error?.message}`, mine: wanted, theirs: null };
    wanted = rebased(from.doc, wanted, current.data.doc);
    from = { seq: current.data.head ?? current.data.seq, doc: current.data.doc };
    say({ who: "page", text: `your change is made again on top of seq ${grouped(from.seq)} (try ${attempt + 1} of ${TRIES})`, kind: "run", icon: "refresh-cw" });
  }
  return { ok: false, text: `It did not converge in ${TRIES} tries: others write faster than this page. Both versions are below.`, mine: wanted, theirs: from.doc };
}

/** @param {{entity: any, space: string, id: string}} props */
function Edit({ entity, space, id }) {
  const [as, setAs] = useAddress("as", "form"), [base, setBase] = useState(entity), [mine, setMine] = useState(entity.doc), [text, setText] = useState(""), [steps, setSteps] = useState(/** @type {Step[]} */ ([])), [end, setEnd] = useState(/** @type {any} */ (null)), clean = useRef(true);
  useEffect(() => {
    if (clean.current) {
      setBase(entity);
      setMine(entity.doc);
    }
  }, [entity.seq]);
  const { mine: own, theirs, touching } = changes(base.doc ?? {}, mine ?? {}, entity.doc ?? {});
  const set = (/** @type {any} */ next) => {
    clean.current = false;
    setMine(next);
    setEnd(null);
  };
  const press = async () => {
    setSteps([]);
    const done = await commit(space, id, { seq: base.head ?? base.seq, doc: base.doc }, mine, (step) => setSteps((/** @type {Step[]} */ old) => [...old, step]));
    setEnd(done);
    if (done.ok) clean.current = true;
  };
  const undo = () => {
    clean.current = true;
    setBase(entity);
    setMine(entity.doc);
    setEnd(null);
  };
  const json = (/** @type {any} */ event) => {
    setText(event.target.value);
    try {
      const doc = JSON.parse(event.target.value);
      if (typeof doc === "object" && doc !== null) set(doc);
    } catch { /* half-typed JSON is kept as text */ }
  };
  const patch = patchOf(base.doc ?? {}, mine ?? {});
  return html`<div class="g2"><${Card} title="Edit" sub="made from seq ${grouped(base.seq)}; what others change shows at once" right=${html`<${Choice} label="Edit as" of=${[["form", "Form"], ["json", "JSON"]]} value=${as} set=${(/** @type {any} */ value) => { setText(JSON.stringify(mine, null, 2)); setAs(value); }} />${own.length ? html`<button class="btn quiet" onClick=${undo}>Undo</button>` : null}<${Deed} scope="write" kind="go" act=${press}>Commit<//>`}>
      <div class="stack">${as === "json" ? html`<label class="field">document, as JSON<textarea rows="12" spellcheck=${false} value=${text || JSON.stringify(mine, null, 2)} onInput=${json}></textarea></label>` : Object.keys({ ...mine, ...entity.doc }).map((key) => html`<label class="field" key=${key}>${key}<input value=${typed((mine ?? {})[key] ?? "")} onInput=${(/** @type {any} */ event) => set({ ...mine, [key]: read(event.target.value, (base.doc ?? {})[key]) })} spellcheck=${false} />
        ${touching.includes(key) ? html`<span class="c-slow">Another wrote ${typed(entity.doc[key])} after you began. Yours is kept unless you <button type="button" class="link" onClick=${() => set({ ...mine, [key]: entity.doc[key] })}>take theirs</button>.</span>` : theirs.includes(key) && !own.includes(key) ? html`<span class="c-ok">Another changed it to ${typed(entity.doc[key])}; it does not touch your change.</span>` : null}</label>`)}
        <${Cmd} text=${command("penstock", "entity", "patch", space, id, JSON.stringify(patch))} /></div><//>
    <${Card} title="What became of your commit" flush>${!steps.length ? html`<p class="none">${own.length ? `Not committed yet: ${own.join(", ")}.` : "Change a field, then commit."}</p>` : null}
      ${steps.map((/** @type {Step} */ step, /** @type {number} */ i) => html`<div class="event" key=${i}><span class="who">${step.who}</span><span class="c-${step.kind}"><${Icon} name=${step.icon} /></span><span>${step.text}</span></div>`)}
      ${end ? html`<div class="body tops stack" role="status"><${Why} of=${end.ok ? "ok" : "error"}>${end.text}<//>${end.mine ? html`<div class="g2"><div><b>yours</b><${Pretty} value=${end.mine} /></div><div><b>theirs</b><${Pretty} value=${end.theirs} /></div></div>` : null}</div>` : null}<//></div>`;
}

/** @param {{commit: any}} props */
function Difference({ commit: one }) {
  if (one.after === null) return html`<span class="c-bad">deleted</span>`;
  if (one.before === undefined || one.after === undefined) return html`${one.writes.flatMap((/** @type {any} */ write) => Object.entries(write.set ?? write.patch ?? {})).map((/** @type {[string, any]} */ [key, value], /** @type {number} */ i) => html`${i ? ", " : ""}${key} ${value === null ? "removed" : typed(value)}`)}`;
  if (one.before === null) return html`<span>created with ${some(Object.keys(one.after ?? {}).length, "member")}</span>`;
  const patch = patchOf(one.before, one.after);
  return html`${Object.keys(patch).map((key, i) => html`${i ? ", " : ""}${key} ${Object.hasOwn(one.before, key) ? html`<s class="muted">${typed(one.before[key])}</s> ` : ""}${Object.hasOwn(one.after, key) ? typed(one.after[key]) : "removed"}`)}`;
}

/** @param {{twin: any}} props */
function View({ twin }) {
  const { entity, commits } = twin.sections, space = twin.name, id = twin.id, [at, setAt] = useAddress("at"), [past, setPast] = useState(/** @type {any} */ (null));
  useEffect(() => {
    setPast(null);
    if (at) api("GET", `/v0/spaces/${encodeURIComponent(space)}/entities/${encodeURIComponent(id)}?at=${encodeURIComponent(at)}`).then((answer) => setPast(answer.ok ? answer.data : { error: answer.error }));
  }, [at]);
  const found = versions(commits?.commits ?? [], commits?.base).reverse(), last = found[0];
  const head = html`<h1 class="mono">${space} / ${id}</h1><${Chip} kind="water">entity<//>`;
  if (!entity || entity.error) return html`<div class="titlebar">${head}</div><section class="card"><${Missing} of=${entity} what="This entity" /></section><${Cmd} text=${command("penstock", "entity", "set", space, id, '{"name": "value"}')} />`;
  return html`<div class="titlebar">${head}<span class="lead">seq ${grouped(entity.seq)}${last ? html` · changed ${span(now() - last.ts)} ago by ${last.session === session ? "you" : last.session}${found[1] ? `, before that by ${found[1].session === session ? "you" : found[1].session}` : ""}` : null}</span></div>
    ${at ? html`<${Card} title="As of seq ${at}" right=${html`<button class="btn s" onClick=${() => setAt("")}>Now</button>`}>${!past ? html`<p class="muted">Asking for it.</p>` : past.error ? html`<${Missing} of=${past} what="It" />` : html`<${Pretty} value=${past.doc} />`}<//>` : null}
    <${Edit} entity=${entity} space=${space} id=${id} />
    <${Card} title="History" flush right=${html`<span class="sub">${commits?.complete === false ? "older commits are gone" : ""}</span>`}>${!found.length ? html`<${Missing} of=${commits} what="History" />` : html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table><thead><tr><th class="num">seq</th><th>when</th><th>who</th><th>what changed</th><th><span class="sr">as of then</span></th></tr></thead><tbody>${found.map((one) => html`<tr key=${one.seq}><td class="num mono">${grouped(one.seq)}</td><td class="nowrap" title=${exact(one.ts)}>${clock(one.ts)}</td><td>${one.session === session ? "you" : one.session}</td><td class="mono wrap"><${Difference} commit=${one} /></td><td><button class="btn s quiet" onClick=${() => setAt(String(one.seq))} aria-label="As of seq ${one.seq}"><${Icon} name="history" small /></button></td></tr>`)}</tbody></table></div>`}<//>`;
}

mount({ page: "entities", crumbs: (twin) => [html`<a href="/entities">Entities</a>`, html`<a href="/entities?space=${encodeURIComponent(twin.name)}">${twin.name}</a>`, html`<span>${twin.id}</span>`], View });
