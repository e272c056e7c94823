// What a page shows, from what the stream says. Pure: `reduce` never changes what it was given.

/** @typedef {Record<string, any>} Section */
/** @typedef {{page: string, at: number, boot?: string, version?: string, sections: Record<string, Section>, [key: string]: any}} Twin */
/** @typedef {{kind: "record", seq: number, record: Record<string, any>} | {kind: "gap", seq: number, from: number, to: number, count: number}} TailItem */

export const KEPT_POINTS = 900;
export const KEPT_EVENTS = 100;
export const KEPT_TAIL = 400;

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

/** A whole state replaces everything but the session, which is in the page's own twin only. @param {Twin|null} twin @param {any} data @returns {Twin} */
function fromState(twin, data) {
  const next = { ...data, sections: { ...data.sections } };
  if (twin?.session && !next.session) next.session = twin.session;
  if (isPeek(next.sections.peek)) next.sections.peek = tail(null, next.sections.peek);
  return next;
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
  for (const [name, members] of Object.entries(frame.front ?? {})) {
    sections[name] = { ...sections[name] };
    for (const [member, { add, keep }] of Object.entries(members)) {
      sections[name][member] = [...add, ...(sections[name][member] ?? []).slice(0, keep)];
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
 * The live tail of a topic, newest first, after more records; what was left out is an item as well.
 * @param {any} before the section so far @param {any} peek @returns {Section}
 */
export function tail(before, peek) {
  const known = before?.items ? before : { items: [], to_seq: peek.from_seq };
  const fresh = peek.records.filter((/** @type {any} */ record) => record.$seq > (known.to_seq ?? -1));
  /** @type {TailItem[]} */
  const items = fresh.map((/** @type {any} */ record) => ({ kind: "record", seq: record.$seq, record })).reverse();
  if (peek.skipped > 0 && peek.to_seq > (known.to_seq ?? -1)) {
    items.push({ kind: "gap", seq: peek.from_seq + 0.5, from: peek.from_seq, to: peek.to_seq, count: peek.skipped });
  }
  return {
    topic: peek.topic,
    head_seq: Math.max(peek.head_seq ?? 0, known.head_seq ?? 0),
    to_seq: Math.max(peek.to_seq ?? 0, known.to_seq ?? 0),
    items: [...items, ...known.items].slice(0, KEPT_TAIL),
    came: (known.came ?? 0) + fresh.length + (peek.to_seq > (known.to_seq ?? -1) ? peek.skipped : 0),
  };
}

/**
 * A number of each frame as a series, for what the server keeps no history of.
 * @param {{t: number[], [name: string]: any[]}} series @param {number} at @param {Record<string, number|null>} values
 */
export function collected(series, at, values) {
  if (series.t.length && at <= /** @type {number} */ (series.t.at(-1))) return series;
  /** @type {{t: number[], [name: string]: any[]}} */
  const next = { t: [...series.t, at].slice(-KEPT_POINTS) };
  for (const [name, value] of Object.entries(values)) {
    next[name] = [...(series[name] ?? Array(series.t.length).fill(null)), value].slice(-KEPT_POINTS);
  }
  return next;
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
    if (t[i] - last > 2.5 * step) {
      out[0].push((last + step) / 1000);
      columns.forEach((_, k) => out[k + 1].push(null));
    }
    last = t[i];
    out[0].push(last / 1000);
    columns.forEach((column, k) => out[k + 1].push(column[i] ?? null));
  }
  return out;
}
