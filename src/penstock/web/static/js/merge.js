// Two people and one document: what each changed, what touches, and the patch that keeps mine.
// Pure: documents in, facts out.

/** @typedef {Record<string, any>} Doc */

/** @param {any} a @param {any} b @returns {boolean} */
export function same(a, b) {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null || Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

/** @param {any} value @returns {value is Doc} */
const isDoc = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The merge patch (RFC 7396) that makes `after` of `before`; null removes a member. @param {Doc} before @param {Doc} after @returns {Doc} */
export function patchOf(before, after) {
  /** @type {Doc} */
  const patch = {};
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (!Object.hasOwn(after, key)) patch[key] = null;
    else if (isDoc(before[key]) && isDoc(after[key])) {
      const inner = patchOf(before[key], after[key]);
      if (Object.keys(inner).length) patch[key] = inner;
    } else if (!same(before[key], after[key])) patch[key] = after[key];
  }
  return patch;
}

/** A document with a merge patch applied. @param {any} doc @param {any} patch @returns {any} */
export function patched(doc, patch) {
  if (!isDoc(patch)) return patch;
  const next = isDoc(doc) ? { ...doc } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete next[key];
    else next[key] = patched(next[key], value);
  }
  return next;
}

/**
 * What I and others did to the members of a document since I began.
 * @param {Doc} base when I began @param {Doc} mine @param {Doc} theirs as it is now
 * @returns {{mine: string[], theirs: string[], touching: string[]}}
 */
export function changes(base, mine, theirs) {
  const changed = (/** @type {Doc} */ doc) => Object.keys(patchOf(base, doc));
  const own = changed(mine), others = changed(theirs);
  return { mine: own, theirs: others, touching: own.filter((key) => others.includes(key) && !same(mine[key], theirs[key])) };
}

/** My document on top of theirs: others' members are taken unless I changed them. @param {Doc} base @param {Doc} mine @param {Doc} theirs @returns {Doc} */
export const rebased = (base, mine, theirs) => patched(theirs, patchOf(base, mine));

/** The JSON Pointer of a member. @param {string} key */
export const pointer = (key) => `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`;

/**
 * The commits of an entity with the document before and after each, oldest first. Undefined is a document that is not known:
 * the commits that made it are gone, and a patch of it shows what it wrote only.
 * @param {any[]} commits @param {any} base the document before them, null if there was none @returns {any[]}
 */
export function versions(commits, base) {
  let doc = base;
  return commits.map((commit) => {
    const before = doc;
    for (const write of commit.writes) doc = write.delete ? null : Object.hasOwn(write, "set") ? write.set : doc === undefined ? undefined : patched(doc, write.patch);
    return { ...commit, before, after: doc };
  });
}
