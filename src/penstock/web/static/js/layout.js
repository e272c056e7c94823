// Where the nodes of the graph stand. Loaded as a worker, so that the page answers meanwhile; its
// functions are pure.
import dagre from "../vendor/dagre.js";

/** @typedef {{id: string, kind: string, unit?: string|null}} GraphNode */
/** @typedef {{source: string, target: string}} GraphEdge */
/** @typedef {{key: string, members: string[]}} Unit */
/** @typedef {{width: number, height: number, nodes: Record<string, {x: number, y: number}>, edges: {source: string, target: string, path: string}[], hulls: {key: string, x: number, y: number, width: number, height: number}[]}} Layout */

export const NODE_WIDTH = 174;
export const NODE_HEIGHT = 50;

/**
 * The longest way to a node from any source; a cycle ends where it begins.
 * @param {GraphEdge[]} edges @returns {(id: string) => number}
 */
function depths(edges) {
  /** @type {Map<string, string[]>} */
  const sources = new Map();
  for (const { source, target } of edges) sources.set(target, [...(sources.get(target) ?? []), source]);
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @param {string} id @returns {number} */
  const depth = (id) => {
    const before = known.get(id);
    if (before !== undefined) return before;
    known.set(id, 0);
    const found = Math.max(0, ...(sources.get(id) ?? []).map((source) => depth(source) + 1));
    known.set(id, found);
    return found;
  };
  return depth;
}

/**
 * Lay a graph out from left to right. Sources stand as far left as they can; what changes in one
 * snapshot is inside one hull.
 * @param {any} lib dagre @param {{nodes: GraphNode[], edges: GraphEdge[], units?: Unit[]}} graph @returns {Layout}
 */
export function layout(lib, { nodes, edges, units = [] }) {
  const plan = new lib.graphlib.Graph({ compound: true });
  plan.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 44, marginx: 20, marginy: 24 });
  plan.setDefaultEdgeLabel(() => ({}));
  const ids = new Set(nodes.map((node) => node.id)), joined = units.filter((unit) => unit.members.filter((id) => ids.has(id)).length > 1);
  for (const node of nodes) plan.setNode(node.id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const unit of joined) {
    plan.setNode(`#${unit.key}`, {});
    for (const id of unit.members) if (ids.has(id)) plan.setParent(id, `#${unit.key}`);
  }
  const known = edges.filter(({ source, target }) => ids.has(source) && ids.has(target) && source !== target);
  const depth = depths(known);
  for (const { source, target } of known) plan.setEdge(source, target, depth(source) === 0 ? { minlen: Math.max(1, depth(target)) } : {});
  lib.layout(plan);
  const placed = Object.fromEntries(nodes.map((node) => [node.id, { x: plan.node(node.id).x, y: plan.node(node.id).y }]));
  return {
    width: plan.graph().width, height: plan.graph().height, nodes: placed,
    edges: known.map(({ source, target }) => ({ source, target, path: curve(placed[source], placed[target], plan.edge(source, target).points) })),
    hulls: joined.map((unit) => ({ key: unit.key, ...hull(unit.members.filter((id) => ids.has(id)).map((id) => placed[id])) })),
  };
}

/**
 * A soft curve that leaves at the right of a node and arrives at the left of another.
 * @param {{x: number, y: number}} from @param {{x: number, y: number}} to @param {{x: number, y: number}[]} points
 */
export function curve(from, to, points) {
  const left = from.x + NODE_WIDTH / 2, right = to.x - NODE_WIDTH / 2;
  const between = points.slice(1, -1).filter((point) => point.x > left + 30 && point.x < right - 30);
  const way = [{ x: left, y: from.y }, ...between, { x: right, y: to.y }].map(({ x, y }) => ({ x: Math.round(x), y: Math.round(y) }));
  return `M${way[0].x} ${way[0].y}` + way.slice(1).map((point, i) => {
    const middle = (way[i].x + point.x) / 2;
    return `C${middle} ${way[i].y} ${middle} ${point.y} ${point.x} ${point.y}`;
  }).join("");
}

/** @param {{x: number, y: number}[]} places */
function hull(places) {
  const xs = places.map((place) => place.x), ys = places.map((place) => place.y);
  const x = Math.min(...xs) - NODE_WIDTH / 2 - 14, y = Math.min(...ys) - NODE_HEIGHT / 2 - 26;
  return { x, y, width: Math.max(...xs) + NODE_WIDTH / 2 + 14 - x, height: Math.max(...ys) + NODE_HEIGHT / 2 + 14 - y };
}

// In a worker of the tables page; nobody listens in a test.
if (typeof document === "undefined" && typeof postMessage === "function") {
  addEventListener("message", (message) => {
    const { key, graph } = message.data;
    postMessage({ key, laid: layout(dagre, graph) });
  });
}
