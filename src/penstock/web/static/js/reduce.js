// What a page shows, from what the stream says. Pure: `reduce` never changes what it was given.

/** @typedef {Record<string, any>} Section */
/** @typedef {{page: string, at: number, boot?: string, version?: string, sections: Record<string, Section>, [key: string]: any}} Twin */
/** @typedef {{kind: "record", seq: number, record: Record<string, any>} | {kind: "gap", seq: number, from: number, to: number, count: number}} TailItem */

export const KEPT_POINTS = 900;
export const KEPT_EVENTS = 100;
export const KEPT_TAIL = 400;
/** Points are that many steps apart before what is between them is missing: a late step is not a gap. */
const GAP_STEPS = 2.5;

/**
 * The twin after one event of its stream.
 * @param {Twin|null} twin @param {string} event state, frame, event or peek @param {any} data @returns {Twin|null}
 */
export function reduce(twin, event, data) {
  if (event === "state") return fromState(twin, data);
  if (twin === null) return null;
  if (event === "frame") return withFrame(twin, data);
  if (event === "event") return withEvent(twin, data);
  if (event === "peek") return withSections({ ...twin, at: data.at ?? twin.at }, { peek: tail(twin.sections.peek, data) });
  return twin;
}

/**
 * A whole state replaces everything but the session, which is in the page's own twin only. It has the last two minutes of history, or
 * what a server that was started again has: what this page saw before stays.
 * @param {Twin|null} twin @param {any} data @returns {Twin} */
function fromState(twin, data) {
  const next = { ...data, sections: { ...data.sections } };
  if (twin?.session && !next.session) next.session = twin.session;
  if (isPeek(next.sections.peek)) next.sections.peek = tail(null, next.sections.peek);
  if (twin && twin.page === next.page && twin.name === next.name && twin.id === next.id) {
    for (const [name, section] of Object.entries(next.sections)) {
      if (section?.t && twin.sections[name]?.t) next.sections[name] = extended(twin.sections[name], section, KEPT_POINTS);
    }
  }
  return next;
}

/**
 * Columns over time with the points of others that were before theirs.
 * @param {any} old @param {Section} columns @param {number} kept how many points at most @returns {Section}
 */
export function extended(old, columns, kept) {
  const first = columns.t[0] ?? Infinity, from = (old?.t ?? []).findIndex((/** @type {number} */ at) => at >= first);
  return continued(old, columns, from < 0 ? (old?.t ?? []).length : from, kept);
}

/** @param {any} old @param {Section} columns @param {number} count @param {number} kept @returns {Section} */
const continued = (old, columns, count, kept) => Object.fromEntries(Object.entries(columns).map(([name, value]) => [name,
  Array.isArray(value) ? [...(old?.[name]?.slice(0, count) ?? Array(count).fill(null)), ...value].slice(-kept)
    : typeof value === "object" && value ? continued(old?.[name], value, count, kept) : value]));

/**
 * The time of the newest point before which more than two steps are missing; 0 if none are.
 * @param {number[]} t in ms @param {number} step in ms
 */
export function gapIn(t, step) {
  for (let i = t.length - 1; i > 0; i--) if (t[i] - t[i - 1] > GAP_STEPS * step) return t[i];
  return 0;
}

/** @param {any} section */
const isPeek = (section) => Array.isArray(section?.records);

/** @param {Twin} twin @param {Record<string, Section>} sections @returns {Twin} */
const withSections = (twin, sections) => ({ ...twin, sections: { ...twin.sections, ...sections } });

/** @param {Twin} twin @param {any} frame @returns {Twin} */
function withFrame(twin, frame) {
  const sections = { ...twin.sections };
  for (const [name, value] of Object.entries(frame.set ?? {})) {
    sections[name] = name === "peek" && isPeek(value) ? tail(null, value) : value;
  }
  for (const [name, members] of Object.entries(frame.put ?? {})) {
    sections[name] = { ...sections[name], .../** @type {object} */ (members) };
  }
  for (const [name, members] of Object.entries(frame.drop ?? {})) {
    sections[name] = { ...sections[name] };
    for (const member of /** @type {string[]} */ (members)) delete sections[name][member];
  }
  for (const [name, members] of Object.entries(frame.list ?? {})) {
    sections[name] = { ...sections[name] };
    for (const [member, pieces] of Object.entries(members)) {
      sections[name][member] = pieced(sections[name][member] ?? [], pieces);
    }
  }
  for (const [name, members] of Object.entries(frame.cols ?? {})) {
    sections[name] = { ...sections[name] };
    for (const [member, columns] of Object.entries(members)) {
      sections[name][member] = withColumns(sections[name][member] ?? [], columns);
    }
  }
  for (const [name, columns] of Object.entries(frame.push ?? {})) {
    sections[name] = pushed(sections[name] ?? {}, columns);
  }
  return { ...twin, at: frame.at ?? twin.at, sections };
}

/**
 * A list of what was in another one, by place and length, and of new items.
 * @param {any[]} before @param {({add: any[]} | [number, number])[]} pieces
 */
const pieced = (before, pieces) => pieces.flatMap((piece) => ("add" in piece ? piece.add : before.slice(piece[0], piece[0] + piece[1])));

/**
 * Rows with columns set, of all of them (a list) or of those named by index (an object).
 * @param {Record<string, any>[]} rows @param {Record<string, any[] | Record<string, any>>} columns
 */
function withColumns(rows, columns) {
  const next = rows.slice();
  for (const [column, values] of Object.entries(columns)) {
    for (const [index, value] of Object.entries(values)) {
      if (Number(index) < next.length) next[Number(index)] = { ...next[Number(index)], [column]: value };
    }
  }
  return next;
}

/** Columns with new points; those that are there already are left out. @param {Section} section @param {Section} columns */
function pushed(section, columns) {
  const last = section.t?.at(-1) ?? -Infinity;
  const from = (columns.t ?? []).findIndex((/** @type {number} */ t) => t > last);
  if (columns.t && from < 0) return section;
  return appended(section, columns, Math.max(0, from), section.t?.length ?? 0);
}

/**
 * @param {Section} section @param {Section} columns @param {number} from the first new point
 * @param {number} before how many points were there: a column that begins now has none of them
 * @returns {Section}
 */
function appended(section, columns, from, before) {
  const next = { ...section };
  for (const [name, values] of Object.entries(columns)) {
    if (Array.isArray(values)) {
      const old = section[name] ?? Array(before).fill(null);
      next[name] = [...old, ...values.slice(from)].slice(-KEPT_POINTS);
    } else {
      next[name] = appended(section[name] ?? {}, values, from, before);
    }
  }
  return next;
}

/** @param {Twin} twin @param {any} event @returns {Twin} */
function withEvent(twin, event) {
  const events = twin.sections.events?.events;
  if (!events || events.some((/** @type {any} */ old) => old.id === event.id)) return twin;
  const next = [event, ...events].sort((a, b) => b.id - a.id).slice(0, KEPT_EVENTS);
  return withSections(twin, { events: { ...twin.sections.events, events: next, last_id: next[0].id } });
}

/**
 * The live tail of a topic, newest first, after more records; what was left out is an item as well, also where a stream was away.
 * @param {any} before the section so far @param {any} peek @returns {Section}
 */
export function tail(before, peek) {
  const anew = peek.from_seq === 0 && peek.to_seq < before?.to_seq; // the topic was removed and made again
  const known = before?.items && !anew ? before : { items: [], to_seq: peek.from_seq, came: before?.came };
  const fresh = peek.records.filter((/** @type {any} */ record) => record.$seq > (known.to_seq ?? -1));
  const from = Math.min(peek.from_seq, known.to_seq ?? peek.from_seq), missed = peek.from_seq - from;
  const left = missed + (peek.to_seq > (known.to_seq ?? -1) ? peek.skipped : 0);
  /** @type {TailItem[]} */
  const items = fresh.map((/** @type {any} */ record) => ({ kind: "record", seq: record.$seq, record })).reverse();
  if (left > 0) items.push({ kind: "gap", seq: from + 0.5, from, to: peek.to_seq, count: left });
  return {
    topic: peek.topic,
    head_seq: Math.max(peek.head_seq ?? 0, known.head_seq ?? 0),
    to_seq: Math.max(peek.to_seq ?? 0, known.to_seq ?? 0),
    items: [...items, ...known.items].slice(0, KEPT_TAIL),
    came: (known.came ?? 0) + fresh.length + left,
  };
}

/**
 * Columns over time, gone on with the later points of others that may not have all of them.
 * @param {{t: number[], [name: string]: any}} older @param {{t: number[], [name: string]: any}} newer @returns {{t: number[], [name: string]: any}}
 */
export function followed(older, newer) {
  const last = older.t.at(-1) ?? -Infinity, first = newer.t.findIndex((at) => at > last), from = first < 0 ? newer.t.length : first;
  const names = Object.keys(older).filter((name) => Array.isArray(older[name]));
  return /** @type {any} */ (Object.fromEntries(names.map((name) => [name, [...older[name], ...(newer[name]?.slice(from) ?? Array(newer.t.length - from).fill(null))]])));
}

/**
 * Columns between two times, with a point of nothing wherever more than two steps are missing, so
 * that a gap in the data is a gap in the chart.
 * @param {number[]} t in ms @param {any[][]} columns @param {number} from @param {number} step in ms
 * @returns {any[][]} t in seconds, then the columns
 */
export function windowed(t, columns, from, step) {
  /** @type {any[][]} */
  const out = [[], ...columns.map(() => [])];
  let last = NaN;
  for (let i = Math.max(0, t.findIndex((x) => x >= from)); i < t.length; i++) {
    if (t[i] < from) break;
    if (t[i] - last > GAP_STEPS * step) {
      out[0].push((last + step) / 1000);
      columns.forEach((_, k) => out[k + 1].push(null));
    }
    last = t[i];
    out[0].push(last / 1000);
    columns.forEach((column, k) => out[k + 1].push(column[i] ?? null));
  }
  return out;
}

// ---- what the stream is asked for: the tabs of a browser, as the one that leads knows them -----

/** @typedef {{on: string, hidden: boolean, heard: number}} Tab what it shows, and when it was heard of */
/** @typedef {Map<string, Tab>} Tabs in the order in which they came */

/** The server streams no more pages at once. */
export const PAGES_MAX = 16;
/** How often a tab says that it is there, and how long it counts without: a hidden one may speak once a minute only. */
export const HERE_MS = 20_000;
export const GONE_MS = 150_000;

/**
 * The tabs after one of them said what it shows, and whether it needs to be told all of it.
 * @param {Tabs} tabs @param {string} id @param {Tab} tab @returns {{tabs: Tabs, isNew: boolean}}
 */
export const heardOf = (tabs, id, tab) => ({ tabs: new Map(tabs).set(id, tab), isNew: tabs.get(id)?.on !== tab.on });

/** The tabs without those that ended and could not say so; the one that leads is there. @param {Tabs} tabs @param {string} own @param {number} now @returns {Tabs} */
export const present = (tabs, own, now) => new Map([...tabs].filter(([id, tab]) => id === own || now - tab.heard < GONE_MS));

/**
 * What to stream: what the leading tab shows, then what can be seen, then what hidden tabs show, as much as the server takes.
 * @param {Tabs} tabs @param {string} own @returns {string[]}
 */
export function subjects(tabs, own) {
  const rank = (/** @type {[string, Tab]} */ [id, tab]) => (id === own ? 0 : tab.hidden ? 2 : 1);
  return [...new Set([...tabs].sort((a, b) => rank(a) - rank(b)).map(([, tab]) => tab.on))].slice(0, PAGES_MAX);
}
