"""Any order of states, frames, gaps and reconnects ends in the same picture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.javascript import Modules

KEPT = 900
VALUES = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from(["a", "<img src=x onerror=1>"]))


@pytest.fixture(scope="module")
def js() -> Modules:
    return Modules("js/reduce.js")


class Server:
    """A twin that changes, what each change looks like as a frame, and the points of all time."""

    def __init__(self) -> None:
        self.at = 0
        self.sections: dict[str, Any] = {
            "facts": {"n": 0},
            "list": {"rows": [{"n": 0}, {"n": 0}]},
            "history": {"t": [], "in": [], "stages": {"s": {"w": []}}},
            "events": {"events": [], "last_id": 0},
        }

    def change(self, kind: str, value: Any) -> tuple[str, dict[str, Any]]:
        """Change the twin in one way; returns the event that says so."""
        self.at += 1
        return getattr(self, f"_{kind}")(value)

    def _frame(self, **parts: Any) -> tuple[str, dict[str, Any]]:
        return "frame", {"at": self.at, **copy.deepcopy(parts)}

    def _nothing(self, _: Any) -> tuple[str, dict[str, Any]]:
        return self._frame()

    def _set(self, value: Any) -> tuple[str, dict[str, Any]]:
        self.sections["facts"] = {"n": value}
        return self._frame(set={"facts": self.sections["facts"]})

    def _put(self, value: Any) -> tuple[str, dict[str, Any]]:
        self.sections["facts"]["m"] = value
        return self._frame(put={"facts": {"m": value}})

    def _drop(self, _: Any) -> tuple[str, dict[str, Any]]:
        self.sections["facts"].pop("m", None)
        return self._frame(drop={"facts": ["m"]})

    def _list(self, value: Any) -> tuple[str, dict[str, Any]]:
        rows = self.sections["list"]["rows"]
        self.sections["list"]["rows"] = [*rows[1:2], {"n": value}, *rows[:1]]
        return self._frame(list={"list": {"rows": [[1, 1], {"add": [{"n": value}]}, [0, 1]]}})

    def _cols(self, value: Any) -> tuple[str, dict[str, Any]]:
        self.sections["list"]["rows"][0]["n"] = value
        return self._frame(cols={"list": {"rows": {"n": {"0": value}}}})

    def _push(self, value: Any) -> tuple[str, dict[str, Any]]:
        history = self.sections["history"]
        for column, point in (("t", self.at), ("in", value)):
            history[column].append(point)
        history["stages"]["s"]["w"].append(value)
        return self._frame(
            push={"history": {"t": [self.at], "in": [value], "stages": {"s": {"w": [value]}}}}
        )

    def _event(self, value: Any) -> tuple[str, dict[str, Any]]:
        events = self.sections["events"]
        events["last_id"] += 1
        row = {"id": events["last_id"], "text": value}
        events["events"] = [row, *events["events"]][:100]
        return "event", row

    def state(self, points: int | None = None) -> tuple[str, dict[str, Any]]:
        """What a stream begins with; of history, its last points may be all that it has."""
        sections = copy.deepcopy(self.sections)
        if points is not None:
            sections["history"] = _last(sections["history"], points)
        return "state", {"page": "p", "boot": "b", "at": self.at, "sections": sections}

    def caught_up(self, since: int) -> tuple[str, dict[str, Any]]:
        """What a returning reader gets: all sections, and the points it may have missed."""
        history = self.sections["history"]
        first = next((i for i, t in enumerate(history["t"]) if t >= since), len(history["t"]))
        cut = {"t": history["t"][first:], "in": history["in"][first:]}
        cut["stages"] = {"s": {"w": history["stages"]["s"]["w"][first:]}}
        others = {name: value for name, value in self.sections.items() if name != "history"}
        return self._frame(set=others, push={"history": cut})


def _last(columns: dict[str, Any], count: int) -> dict[str, Any]:
    """The last points of columns."""
    return {
        name: _last(values, count) if isinstance(values, dict) else values[-count:]
        for name, values in columns.items()
    }


STEP = st.tuples(
    st.sampled_from(["nothing", "set", "put", "drop", "list", "cols", "push", "push", "event"]),
    VALUES,
    st.sampled_from(["seen", "seen", "seen", "seen twice", "missed"]),
)


@given(steps=st.lists(STEP, max_size=30), returns=st.lists(st.booleans(), min_size=30, max_size=30))
@settings(max_examples=150, deadline=None)
def test_whatever_a_reader_missed_it_ends_with_the_servers_picture(
    js: Modules, steps: list[tuple[str, Any, str]], returns: list[bool]
) -> None:
    """A reader that missed something gets a whole state, or a frame that catches up."""
    server = Server()
    shown = js.call("reduce", None, *server.state())
    seen_at, behind = 0, False
    for (kind, value, fate), whole in zip(steps, returns, strict=False):
        event = server.change(kind, value)
        if fate == "missed":
            behind = True
            continue
        if behind:
            event = server.state() if whole else server.caught_up(seen_at)
            behind = False
        shown = js.call("reduce", shown, *event)
        if fate == "seen twice" and "list" not in event[1]:
            shown = js.call("reduce", shown, *event)
        seen_at = server.at
    if behind:
        shown = js.call("reduce", shown, *server.caught_up(seen_at))
    assert shown["sections"] == server.sections


@given(
    steps=st.lists(st.sampled_from(["seen", "seen", "missed", "state"]), max_size=30),
    points=st.integers(1, 4),
)
@settings(max_examples=100, deadline=None)
def test_a_stream_that_begins_anew_takes_no_point_that_was_seen(
    js: Modules, steps: list[str], points: int
) -> None:
    """As after every new tab, filter and leader: the state has the last points only."""
    server = Server()
    shown = js.call("reduce", None, *server.state())
    seen: set[int] = set()
    for fate in steps:
        event = server.change("push", server.at)
        if fate == "state":
            event = server.state(points)
            seen |= set(event[1]["sections"]["history"]["t"])
        if fate != "missed":
            shown = js.call("reduce", shown, *event)
        if fate == "seen":
            seen.add(server.at)
    history, told = shown["sections"]["history"], server.sections["history"]
    assert history["t"] == sorted(seen)
    for n, at in enumerate(history["t"]):
        place = told["t"].index(at)
        assert history["in"][n] == told["in"][place]
        assert history["stages"]["s"]["w"][n] == told["in"][place]
