"""Which nodes of a graph are shown, and where they stand."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.javascript import Modules


@pytest.fixture(scope="module")
def js() -> Modules:
    return Modules("vendor/dagre.js", "js/layout.js", "js/graph.js")


def graph(*edges: str, units: list[list[str]] | None = None, **states: str) -> dict[str, Any]:
    pairs = [edge.split(">") for edge in edges]
    ids = sorted({name for pair in pairs for name in pair})
    return {
        "nodes": [
            {"id": name, "kind": "table", "state": states.get(name, "fresh")} for name in ids
        ],
        "edges": [{"source": source, "target": target} for source, target in pairs],
        "units": [{"key": str(i), "members": members} for i, members in enumerate(units or [])],
    }


def laid(js: Modules, given: dict[str, Any]) -> dict[str, Any]:
    js.value(f"globalThis.given = {json.dumps(given)}")
    return js.value("layout(globalThis.default, given)")


def test_what_reads_stands_to_the_right_of_what_it_reads(js: Modules) -> None:
    places = laid(js, graph("raw>readings", "readings>usage", "usage>totals", "tariffs>usage"))
    x = {name: place["x"] for name, place in places["nodes"].items()}
    assert x["raw"] < x["readings"] < x["usage"] < x["totals"]


def test_a_source_stands_as_far_left_as_it_can(js: Modules) -> None:
    places = laid(js, graph("raw>readings", "readings>usage", "usage>totals", "tariffs>totals"))
    assert places["nodes"]["tariffs"]["x"] == places["nodes"]["raw"]["x"]


def test_no_two_nodes_overlap(js: Modules) -> None:
    places = list(laid(js, graph(*(f"s{i % 3}>t{i}" for i in range(12))))["nodes"].values())
    width, height = js.value("NODE_WIDTH"), js.value("NODE_HEIGHT")
    for i, one in enumerate(places):
        for other in places[:i]:
            assert abs(one["x"] - other["x"]) >= width or abs(one["y"] - other["y"]) >= height


def test_what_changes_in_one_snapshot_is_inside_one_hull(js: Modules) -> None:
    given = graph("raw>a", "raw>b", "a>c", "b>c", "raw>d", units=[["a", "b", "c"], ["d"]])
    places = laid(js, given)
    (hull,) = places["hulls"]
    for name in "abc":
        place = places["nodes"][name]
        assert hull["x"] < place["x"] < hull["x"] + hull["width"]
        assert hull["y"] < place["y"] < hull["y"] + hull["height"]


def test_an_edge_leaves_at_the_right_and_arrives_at_the_left(js: Modules) -> None:
    places = laid(js, graph("a>b"))
    (edge,) = places["edges"]
    start, end = edge["path"].split("C")[0], edge["path"].split()[-2:]
    assert start == f"M{places['nodes']['a']['x'] + 87:.0f} {places['nodes']['a']['y']:.0f}"
    assert float(end[0]) == places["nodes"]["b"]["x"] - 87


def test_a_cycle_and_an_edge_to_nowhere_do_no_harm(js: Modules) -> None:
    given = graph("a>b", "b>a", "a>a")
    given["edges"].append({"source": "a", "target": "gone"})
    assert set(laid(js, given)["nodes"]) == {"a", "b"}


def test_two_hundred_tables_are_laid_out_in_little_time_of_a_small_graph(js: Modules) -> None:
    """How it grows: a bound in seconds would fail on a busy machine."""

    def took(n: int) -> float:
        given = graph(*(f"t{i // 3}>t{i}" for i in range(1, n)))
        began = time.perf_counter()
        assert len(laid(js, given)["nodes"]) == n
        return time.perf_counter() - began

    took(50)
    assert took(200) < 60 * max(took(50), 0.02)


def test_choosing_a_node_lights_what_is_above_and_below_it(js: Modules) -> None:
    edges = graph("a>b", "b>c", "a>d", "x>c")["edges"]
    assert set(js.value(f"[...related({json.dumps(edges)}, 'b')]")) == {"a", "b", "c"}


def large(n: int, **states: str) -> dict[str, Any]:
    return graph(*(f"t{i}>t{i + 1}" for i in range(n - 1)), **states)


def test_a_small_graph_is_shown_whole(js: Modules) -> None:
    size = js.value("WHOLE_MAX") - 1
    assert len(js.call("focused", large(size, t5="late"), None)["nodes"]) == size


def test_a_large_graph_begins_two_steps_around_what_is_late_failing_or_chosen(js: Modules) -> None:
    given = large(js.value("WHOLE_MAX"), t20="late", t50="error")
    shown = {node["id"] for node in js.call("focused", given, "t90")["nodes"]}
    assert shown == {f"t{at + step}" for at in (20, 50, 90) for step in (-2, -1, 0, 1, 2)}


def test_a_large_graph_in_which_all_is_fresh_is_shown_whole(js: Modules) -> None:
    size = js.value("WHOLE_MAX")
    assert len(js.call("focused", large(size), None)["nodes"]) == size


def test_a_layout_does_not_depend_on_states(js: Modules) -> None:
    one, other = graph("a>b"), graph("a>b", a="late")
    assert js.call("shape", one) == js.call("shape", other) != js.call("shape", graph("a>c"))


WORKERS = """
const made = [], told = [], timers = new Map();
let number = 0;
const lay = layouts(() => {
  const worker = { heard: {}, sent: [], ended: false };
  worker.addEventListener = (event, take) => (worker.heard[event] = take);
  worker.postMessage = (wanted) => worker.sent.push(wanted.key);
  worker.terminate = () => (worker.ended = true);
  made.push(worker);
  return worker;
}, (laid) => told.push([laid.key, laid.laid]),
  (call) => (timers.set(++number, call), number), (n) => timers.delete(n));
const want = (key) => lay({ key, graph: {} });
const answers = (n, key) => made[n].heard.message({ data: { key, laid: key } });
const fails = (n, event) => made[n].heard[event]({});
const silent = () => [...timers.values()].forEach((call) => call());
const sent = () => made.map((worker) => worker.sent);
"""


@pytest.fixture
def workers() -> Modules:
    """Layouts with workers that answer when they are told to."""
    modules = Modules("js/graph.js")
    modules.run(WORKERS)
    return modules


def test_one_graph_is_laid_out_at_a_time_and_then_the_newest(workers: Modules) -> None:
    for key in "abc":
        workers.call("want", key)
    assert workers.value("sent()") == [["a"]]
    workers.call("answers", 0, "a")
    workers.call("answers", 0, "c")
    assert workers.value("sent()") == [["a", "c"]], "b is of no use any more"
    assert workers.value("told") == [["a", "a"], ["c", "c"]]
    assert workers.value("timers.size") == 0


@pytest.mark.parametrize("trouble", ["fails(0, 'error')", "fails(0, 'messageerror')", "silent()"])
def test_a_worker_that_fails_or_hangs_is_replaced(workers: Modules, trouble: str) -> None:
    workers.call("want", "a")
    workers.run(trouble)
    assert workers.value("made[0].ended") is True
    assert workers.value("sent()") == [["a"], ["a"]], "it gets a second try"
    workers.call("answers", 0, "a")
    assert workers.value("told") == [], "the first does not count any more"
    workers.call("answers", 1, "a")
    assert workers.value("told") == [["a", "a"]]


def test_the_newest_graph_is_laid_out_after_one_that_cannot_be(workers: Modules) -> None:
    for key in "ab":
        workers.call("want", key)
    workers.call("fails", 0, "error")
    assert workers.value("sent()") == [["a"], ["b"]]
    workers.call("answers", 1, "b")
    assert workers.value("told") == [["a", None], ["b", "b"]]


def test_a_graph_that_fails_twice_is_given_up_and_the_next_is_not(workers: Modules) -> None:
    workers.call("want", "a")
    workers.call("fails", 0, "error")
    workers.run("silent()")
    assert workers.value("told") == [["a", None]]
    assert workers.value("timers.size") == 0
    workers.call("want", "b")
    assert workers.value("sent()") == [["a"], ["a"], ["b"]]
