// What of a graph is shown: what is related, where a large one begins, and what its layout depends on.

/** @typedef {{source: string, target: string}} GraphEdge */
/** @typedef {{key: string, members: string[]}} Unit */

/** The nodes above and below one, and itself. @param {GraphEdge[]} edges @param {string} id @returns {Set<string>} */
export function related(edges, id) {
  const found = new Set([id]);
  for (const [here, there] of /** @type {[keyof GraphEdge, keyof GraphEdge][]} */ ([["source", "target"], ["target", "source"]])) {
    const todo = [id];
    const seen = new Set(todo);
    while (todo.length) {
      const at = todo.pop();
      for (const edge of edges) {
        if (edge[here] === at && !seen.has(edge[there])) {
          seen.add(edge[there]);
          todo.push(edge[there]);
        }
      }
    }
    for (const one of seen) found.add(one);
  }
  return found;
}

/** From how many nodes on a page begins with what is late or failing. */
export const WHOLE_MAX = 150;

/**
 * The part of a graph to begin with: all of a small one; of a large one what is late or failing,
 * with what is within two steps of it.
 * @template {{nodes: any[], edges: GraphEdge[], units?: Unit[]}} G @param {G} graph @param {string|null} chosen @returns {G}
 */
export function focused(graph, chosen) {
  if (graph.nodes.length < WHOLE_MAX) return graph;
  let near = new Set(graph.nodes.filter((node) => node.state === "late" || node.state === "error" || node.id === chosen).map((node) => node.id));
  if (!near.size) return graph;
  for (let step = 0; step < 2; step++) {
    near = new Set([...near, ...graph.edges.flatMap(({ source, target }) => near.has(source) ? [target] : near.has(target) ? [source] : [])]);
  }
  return { ...graph, nodes: graph.nodes.filter((node) => near.has(node.id)), edges: graph.edges.filter(({ source, target }) => near.has(source) && near.has(target)) };
}

/** What a layout depends on: ids, edges and units, not states. @param {{nodes: any[], edges: GraphEdge[], units?: Unit[]}} graph */
export const shape = (graph) => JSON.stringify([graph.nodes.map((node) => node.id), graph.edges.map(({ source, target }) => [source, target]), (graph.units ?? []).map((unit) => unit.members)]);

/** How long a layout may take before its worker counts as hung: 200 tables take a second. */
export const LAYOUT_MS = 10_000;

/** @typedef {{key: string, graph: any}} Wanted */
/** @typedef {{key: string, laid: any}} Laid `laid` is null if the graph cannot be laid out */

/**
 * Lays graphs out in a worker, one at a time; of those that are asked for meanwhile only the last
 * counts. A worker that fails or says nothing is replaced: its graph gets a second try unless there
 * is a newer one, so that neither a hang nor an error stops the graphs after it.
 * @param {() => Worker} make @param {(laid: Laid) => void} tell @param {(call: () => void, ms: number) => any} later @param {(timer: any) => void} never
 */
export function layouts(make, tell, later, never) {
  /** @type {Worker|null} */
  let worker = null;
  /** @type {Wanted & {again?: boolean}|null} */
  let doing = null;
  /** @type {Wanted & {again?: boolean}|null} */
  let next = null;
  /** @type {any} */
  let timer;
  function begin() {
    if (doing || !next) return;
    [doing, next] = [next, null];
    worker ??= started();
    timer = later(failed, LAYOUT_MS);
    worker.postMessage({ key: doing.key, graph: doing.graph });
  }
  function started() {
    const made = make(), mine = (/** @type {(event: any) => void} */ take) => (/** @type {any} */ event) => made === worker && take(event);
    made.addEventListener("message", mine((message) => done(message.data)));
    for (const event of ["error", "messageerror"]) made.addEventListener(event, mine(failed));
    return made;
  }
  /** @param {Laid|null} laid */
  function done(laid) {
    never(timer);
    doing = null;
    if (laid) tell(laid);
    begin();
  }
  function failed() {
    worker?.terminate();
    worker = null;
    const was = doing, again = was && !next && !was.again;
    if (again) next = { ...was, again: true };
    done(was && !again ? { key: was.key, laid: null } : null);
  }
  return (/** @type {Wanted} */ wanted) => {
    next = wanted;
    begin();
  };
}
