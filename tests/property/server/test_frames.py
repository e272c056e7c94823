"""Whatever a section becomes, its change leads there, and costs no more than the section itself."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.live.frames import changes, joined, later_points
from tests.live_model import reduce

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "<b>", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)
row = st.fixed_dictionaries({"name": st.sampled_from("abc"), "n": st.integers(0, 2)})
members = st.dictionaries(
    st.sampled_from(["a", "b", "rows", "error"]), values | st.lists(row, max_size=6), max_size=4
)


def after(section: object, frame: dict) -> object:
    twin = {"at": 0, "sections": {"s": section}}
    return reduce(twin, "frame", json.loads(json.dumps({"at": 1, **frame})))["sections"]["s"]


@given(members, members)
def test_a_change_leads_from_any_section_to_any_other(old, new):
    assert after(old, joined([("s", changes(old, new))])) == new


named = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 9), "n": st.integers(0, 1)}, optional={"more": st.booleans()}
    ),
    max_size=10,
    unique_by=lambda row: row["id"],
)
edges = st.lists(
    st.fixed_dictionaries(
        {"source": st.sampled_from("abc"), "target": st.sampled_from("xyz"), "runs": st.booleans()}
    ),
    max_size=9,
    unique_by=lambda edge: (edge["source"], edge["target"]),
)
plain = st.lists(st.integers(0, 3), max_size=6)


@given(st.sampled_from([named, edges, plain]).flatmap(lambda rows: st.tuples(rows, rows)))
def test_rows_that_come_go_move_and_change_lead_there_too(lists):
    old, new = lists
    told = changes({"rows": old}, {"rows": new})
    assert after({"rows": old}, joined([("s", told)])) == {"rows": new}


@given(
    st.lists(st.integers(1, 100), unique=True).map(sorted), st.integers(0, 101), st.integers(0, 101)
)
def test_points_told_twice_are_there_once(times, first, again):
    columns = {"step": "1s", "t": times, "in": [at * 2 for at in times]}
    shown = {"step": "1s", "t": [], "in": []}
    for since in (0, min(first, again)):
        points = later_points(columns, since)
        if points:
            shown = after(shown, {"push": {"s": points}})
    assert shown == columns
