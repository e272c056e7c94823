"""What a page shows after the events of its stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.javascript import Modules


@pytest.fixture(scope="module")
def js() -> Modules:
    return Modules("js/reduce.js")


def twin(**sections: Any) -> dict[str, Any]:
    return {"page": "overview", "at": 1, "sections": sections}


def frame(js: Modules, before: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return js.call("reduce", before, "frame", parts)["sections"]


def test_a_state_replaces_everything_but_the_session(js: Modules) -> None:
    before = {**twin(a={"x": 1}), "session": {"scopes": ["read"]}}
    after = js.call("reduce", before, "state", twin(b={"y": 2}))
    assert after["sections"] == {"b": {"y": 2}}
    assert after["session"] == {"scopes": ["read"]}


def test_before_the_first_state_nothing_else_counts(js: Modules) -> None:
    assert js.call("reduce", None, "frame", {"at": 2, "set": {"a": 1}}) is None


def test_a_frame_without_news_only_moves_the_clock(js: Modules) -> None:
    after = js.call("reduce", twin(a={"x": 1}), "frame", {"at": 9})
    assert (after["at"], after["sections"]) == (9, {"a": {"x": 1}})


def test_a_frame_sets_sections_puts_members_and_drops_them(js: Modules) -> None:
    before = twin(a={"x": 1, "y": 2}, b={"z": 3})
    after = frame(js, before, set={"b": {"new": 1}}, put={"a": {"x": None}}, drop={"a": ["y"]})
    assert after == {"a": {"x": None}, "b": {"new": 1}}


def test_new_rows_come_to_the_front_and_old_ones_are_cut(js: Modules) -> None:
    after = frame(
        js, twin(a={"rows": [3, 2, 1]}), front={"a": {"rows": {"add": [5, 4], "keep": 2}}}
    )
    assert after["a"]["rows"] == [5, 4, 3, 2]


def test_columns_of_rows_are_set_whole_or_by_index(js: Modules) -> None:
    before = twin(a={"rows": [{"n": 1, "m": 1}, {"n": 2, "m": 2}]})
    after = frame(js, before, cols={"a": {"rows": {"n": [7, 8], "m": {"1": 9, "5": 0}}}})
    assert after["a"]["rows"] == [{"n": 7, "m": 1}, {"n": 8, "m": 9}]


def test_points_that_are_there_already_are_not_pushed_again(js: Modules) -> None:
    before = twin(h={"t": [1, 2], "in": [10, 20], "stages": {"s": {"w": [1, 2]}}})
    pushed = {"t": [2, 3], "in": [99, 30], "stages": {"s": {"w": [99, 3]}}}
    after = frame(js, before, push={"h": pushed})
    assert after["h"] == {"t": [1, 2, 3], "in": [10, 20, 30], "stages": {"s": {"w": [1, 2, 3]}}}
    assert frame(js, {**before, "sections": after}, push={"h": pushed}) == after


def test_a_column_that_begins_later_has_nothing_before(js: Modules) -> None:
    after = frame(
        js, twin(h={"t": [1, 2], "in": [1, 1]}), push={"h": {"t": [3], "in": [1], "out": [5]}}
    )
    assert after["h"]["out"] == [None, None, 5]


def test_a_column_keeps_its_last_points_only(js: Modules) -> None:
    kept = js.value("KEPT_POINTS")
    full = {"t": list(range(kept)), "in": list(range(kept))}
    after = frame(js, twin(h=full), push={"h": {"t": [kept], "in": [kept]}})
    assert (len(after["h"]["t"]), after["h"]["t"][0], after["h"]["in"][-1]) == (kept, 1, kept)


def test_an_event_comes_first_and_only_once(js: Modules) -> None:
    before = twin(events={"events": [{"id": 4}], "last_id": 4})
    after = js.call("reduce", before, "event", {"id": 5})
    assert [event["id"] for event in after["sections"]["events"]["events"]] == [5, 4]
    assert js.call("reduce", after, "event", {"id": 5}) == after


def test_an_event_on_a_page_without_events_changes_nothing(js: Modules) -> None:
    assert js.call("reduce", twin(a={}), "event", {"id": 5}) == twin(a={})


def peek(first: int, last: int, *seqs: int, skipped: int = 0) -> dict[str, Any]:
    records = [{"$seq": seq, "$ts": seq, "data": seq} for seq in seqs]
    return {
        "topic": "t", "from_seq": first, "to_seq": last, "head_seq": last, "records": records,
        "skipped": skipped, "at": last,
    }  # fmt: skip


def seqs(section: dict[str, Any]) -> list[Any]:
    return [
        item["seq"] if item["kind"] == "record" else f"{item['count']} left out"
        for item in section["items"]
    ]


def test_a_tail_has_the_newest_first_and_says_what_was_left_out(js: Modules) -> None:
    first = js.call("reduce", None, "state", twin(peek=peek(0, 2, 1, 2)))
    second = js.call("reduce", first, "peek", peek(2, 9, 4, 8, skipped=5))
    assert seqs(second["sections"]["peek"]) == [8, 4, "5 left out", 2, 1]
    assert second["sections"]["peek"]["came"] == 9


def test_a_record_is_never_shown_twice(js: Modules) -> None:
    first = js.call("reduce", None, "state", twin(peek=peek(0, 2, 1, 2)))
    again = js.call("reduce", first, "peek", peek(0, 3, 1, 2, 3, skipped=0))
    assert seqs(again["sections"]["peek"]) == [3, 2, 1]
    assert seqs(js.call("reduce", again, "peek", peek(0, 3, 3, skipped=2))["sections"]["peek"]) == [
        3, 2, 1,
    ]  # fmt: skip


def test_a_tail_is_bounded(js: Modules) -> None:
    kept = js.value("KEPT_TAIL")
    long = js.call("tail", None, peek(0, kept + 5, *range(1, kept + 6)))
    assert (len(long["items"]), long["items"][0]["seq"]) == (kept, kept + 5)


def test_numbers_of_frames_become_a_series_with_one_point_a_time(js: Modules) -> None:
    one = js.call("collected", {"t": []}, 1, {"in": 5})
    two = js.call("collected", one, 2, {"in": 6, "out": 1})
    assert two == {"t": [1, 2], "in": [5, 6], "out": [None, 1]}
    assert js.call("collected", two, 2, {"in": 9}) == two


def test_a_gap_in_time_is_a_gap_in_the_chart(js: Modules) -> None:
    shown = js.call("windowed", [1000, 2000, 9000, 10000], [[1, 2, 3, 4]], 2000, 1000)
    assert shown == [[2, 3, 9, 10], [2, None, 3, 4]]


def test_a_late_step_is_not_a_gap(js: Modules) -> None:
    assert js.call("windowed", [0, 2500, 3400], [[1, 2, 3]], 0, 1000)[1] == [1, 2, 3]
