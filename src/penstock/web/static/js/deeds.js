// Dialogs that do something: publish, make a topic, change its settings, and ask before records are
// lost. Loaded when first asked for. Each shows the command that does the same.
import { render } from "../vendor/preact.js";
import { api } from "./live.js";
import { command, count, keeps, span, survives } from "./format.js";
import { Cmd, html, Icon, outcome, Said, useEffect, useRef, useState, may } from "./parts.js";

/** @typedef {{name: string, label: string, kind?: string, value?: any, options?: string[], rows?: number, required?: boolean, help?: string}} Field */
/**
 * @typedef {{
 *   title: string, text?: any, fields?: Field[], button: string, icon?: string, bad?: boolean, scope: string, type?: string | ((values: Record<string, any>) => string),
 *   line?: (values: Record<string, any>) => string, warn?: (values: Record<string, any>) => string,
 *   act: (values: Record<string, any>) => Promise<import("./live.js").Answer>, done: (answer: import("./live.js").Answer) => string, after?: (answer: import("./live.js").Answer) => void,
 * }} Asked
 */

const place = document.createElement("div");
document.body.append(place);
/** @type {Element|null} */
let before = null;

/** @param {Asked} asked */
export function ask(asked) {
  before = document.activeElement;
  render(html`<${Dialog} key=${performance.now()} ...${asked} />`, place);
}

function close() {
  render(null, place);
  if (before instanceof HTMLElement) before.focus();
}

/** @param {{field: Field, value: any, set: (value: any) => void}} props */
function Input({ field, value, set }) {
  const change = (/** @type {any} */ event) => set(field.kind === "check" ? event.target.checked : event.target.value);
  if (field.kind === "check") return html`<label class="field inline"><input type="checkbox" checked=${value} onChange=${change} />${field.label}</label>`;
  const body = field.options
    ? html`<select value=${value} onChange=${change}>${field.options.map((option) => html`<option key=${option} value=${option}>${option}</option>`)}</select>`
    : field.rows ? html`<textarea rows=${field.rows} value=${value} onInput=${change} spellcheck=${false}></textarea>`
      : html`<input type=${field.kind ?? "text"} value=${value} onInput=${change} required=${field.required} autocomplete="off" spellcheck=${false} />`;
  return html`<label class="field">${field.label}${body}${field.help && html`<span>${field.help}</span>`}</label>`;
}

/** @param {Asked} asked */
function Dialog(asked) {
  const box = useRef(/** @type {any} */ (null)), fields = asked.fields ?? [];
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
  const [said, setSaid] = useState(/** @type {any} */ (null)), [busy, setBusy] = useState(false), [typed, setTyped] = useState("");
  useEffect(() => box.current.showModal(), []);
  const name = typeof asked.type === "function" ? asked.type(values) : asked.type;
  const ready = may(asked.scope) && !busy && (!name || typed === name);
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (!ready) return;
    setBusy(true);
    const answer = await asked.act(values);
    setBusy(false);
    setSaid(outcome(answer, answer.ok ? asked.done(answer) : ""));
    if (answer.ok) asked.after?.(answer);
  };
  const warning = asked.warn?.(values);
  return html`<dialog ref=${box} aria-label=${asked.title} onClose=${close}><form onSubmit=${submit}>
    <h2>${asked.title}</h2>${asked.text && html`<p class="soft">${asked.text}</p>`}
    ${fields.map((field) => html`<${Input} key=${field.name} field=${field} value=${values[field.name]} set=${(/** @type {any} */ value) => setValues({ ...values, [field.name]: value })} />`)}
    ${warning && html`<div class="why slow"><${Icon} name="triangle-alert" /><div>${warning}</div></div>`}
    ${name && html`<label class="field">type ${name} to go on<input value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} autocomplete="off" spellcheck=${false} /></label>`}
    ${asked.line && html`<${Cmd} text=${asked.line(values)} />`}<${Said} said=${said} />
    <div class="ends"><button class="btn quiet" type="button" onClick=${() => box.current.close()}>${said?.ok ? "Close" : "Cancel"}</button>
      <button class="btn ${asked.bad || name ? "bad" : "go"}" aria-disabled=${!ready} title=${may(asked.scope) ? null : `Needs a key with the scope "${asked.scope}"`}>${asked.icon && html`<${Icon} name=${asked.icon} small />`}${busy ? "Waiting for the server" : asked.button}</button></div></form></dialog>`;
}

/** @param {string} text */
function parsed(text) {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `data is not JSON: ${/** @type {Error} */ (error).message}` };
  }
}

/** @param {string} message @returns {import("./live.js").Answer} */
const refused = (message) => ({ ok: false, status: 0, data: null, error: { code: "invalid", message } });

/** Publish one record. @param {string} topic */
export function publish(topic) {
  ask({
    title: topic ? `Publish to ${topic}` : "Publish a record", button: "Publish", icon: "send", scope: "write",
    fields: [
      ...(topic ? [] : [{ name: "topic", label: "topic; made by the first write to it", required: true }]),
      { name: "data", label: "data, as JSON", rows: 6, value: '{\n  "meter": 7,\n  "kwh": 1.5\n}' },
      { name: "tag", label: "tag, if any" },
    ],
    line: ({ topic: name = topic, data, tag }) => command("penstock", "topic", "write", name || "TOPIC", data.replace(/\s+/g, " "), ...(tag ? ["--tag", tag] : [])),
    act: async ({ topic: name = topic, data, tag }) => {
      const { value, error } = parsed(data);
      if (error) return refused(error);
      return api("POST", `/v0/topics/${encodeURIComponent(name)}`, { records: [{ data: value, ...(tag ? { tag } : {}) }] });
    },
    done: (answer) => `Written to ${answer.data.topic} as seq ${answer.data.last_seq}.`,
  });
}

export function newTopic() {
  ask({
    title: "New topic", button: "Make it", icon: "plus", scope: "admin",
    fields: [
      { name: "topic", label: "name", required: true },
      { name: "type", label: "kind", options: ["log", "queue", "space"], value: "log" },
      { name: "durability", label: "durability", options: ["fsync", "disk", "memory", "ephemeral"], value: "fsync" },
    ],
    warn: ({ durability }) => (durability === "fsync" ? "" : `An acknowledged record of such a topic survives ${survives(durability)}.`),
    line: ({ topic, type, durability }) => command("penstock", "topic", "create", topic || "TOPIC", "--type", type, "--durability", durability),
    act: ({ topic, type, durability }) => api("PUT", `/v0/topics/${encodeURIComponent(topic)}`, { type, durability }),
    done: (answer) => (answer.data.created ? `${answer.data.topic} is there.` : `${answer.data.topic} was there already; its settings are as given.`),
    after: (answer) => location.assign(`/topics/${encodeURIComponent(answer.data.topic)}`),
  });
}

/** What a change of settings will do to what is kept now. @param {any} topic @param {Record<string, any>} next */
export function consequences(topic, next) {
  const { config } = topic, texts = [];
  if (next.durability !== config.durability) texts.push(`From the next write on, an acknowledged record survives ${survives(next.durability)}.`);
  const records = Number(next.cap_records), size = Number(next.cap_bytes), ttl = Number(next.ttl_ms);
  if (records && topic.count > records) texts.push(`The oldest ${count(topic.count - records)} records go at once.`);
  if (size && topic.bytes > size) texts.push("Records beyond the size go at once, the oldest first.");
  if (ttl && ttl !== config.ttl_ms) texts.push(`Records older than ${span(ttl)} go at once, and later ones when they are.`);
  return texts.join(" ");
}

/** Whether a change of settings may remove records that are kept now. @param {any} topic @param {Record<string, any>} next */
export function loses(topic, next) {
  const { config } = topic, less = (/** @type {string} */ name, /** @type {number} */ kept) => Number(next[name]) > 0 && kept > Number(next[name]);
  const sooner = Number(next.ttl_ms) > 0 && (!config.ttl_ms || Number(next.ttl_ms) < config.ttl_ms);
  return topic.count > 0 && (less("cap_records", topic.count) || less("cap_bytes", topic.bytes) || sooner);
}

/** @param {any} topic a TopicState */
export function settings(topic) {
  const { config } = topic;
  const numbers = ["ttl_ms", "cap_records", "cap_bytes"];
  const changed = (/** @type {Record<string, any>} */ values) => Object.fromEntries(Object.entries(values)
    .map(([name, value]) => [name, numbers.includes(name) ? Number(value) : value])
    .filter(([name, value]) => value !== config[/** @type {string} */ (name)]));
  ask({
    title: `Settings of ${topic.topic}`, text: `Now: survives ${survives(config.durability)}, keeps ${keeps(config)}.`, button: "Change", icon: "pencil", scope: "admin",
    fields: [
      { name: "durability", label: "durability", options: ["fsync", "disk", "memory", "ephemeral"], value: config.durability },
      { name: "ttl_ms", label: "keep records for, in ms; 0 keeps them for ever", kind: "number", value: config.ttl_ms },
      { name: "cap_records", label: "keep at most, in records; 0 is no limit", kind: "number", value: config.cap_records },
      { name: "cap_bytes", label: "keep at most, in bytes; 0 is no limit", kind: "number", value: config.cap_bytes },
      { name: "discard", label: "when full", options: ["old", "reject"], value: config.discard },
    ],
    warn: (values) => consequences(topic, values), type: (values) => (loses(topic, values) ? topic.topic : ""),
    line: (values) => command("penstock", "topic", "create", topic.topic, ...Object.entries(changed(values)).flatMap(([name, value]) => [`--${name.replaceAll("_", "-")}`, value])),
    act: (values) => api("PUT", `/v0/topics/${encodeURIComponent(topic.topic)}`, changed(values)),
    done: () => "Changed.",
  });
}

/** @param {any} topic a TopicState */
export function removeTopic(topic) {
  ask({
    title: `Remove ${topic.topic}`, button: `Remove ${topic.topic} with ${count(topic.count)} records`, icon: "trash-2", bad: true, scope: "delete", type: topic.topic,
    text: `The topic, its ${count(topic.count)} records and the routers at its ends go. This cannot be undone.`,
    line: () => command("penstock", "topic", "delete", topic.topic),
    act: () => api("DELETE", `/v0/topics/${encodeURIComponent(topic.topic)}`),
    done: () => `${topic.topic} is gone.`, after: () => location.assign("/topics"),
  });
}
