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


def test_a_list_is_made_of_what_it_had_and_of_new_items(js: Modules) -> None:
    pieces = [{"add": [5, 4]}, [1, 2], [0, 1]]
    after = frame(js, twin(a={"rows": [3, 2, 1]}), list={"a": {"rows": pieces}})
    assert after["a"]["rows"] == [5, 4, 2, 1, 3]


def test_columns_are_those_of_the_list_as_it_is_then(js: Modules) -> None:
    before = twin(a={"rows": [{"id": 1, "n": 1}, {"id": 2, "n": 2}]})
    moved = {"list": {"a": {"rows": [[1, 1], [0, 1]]}}, "cols": {"a": {"rows": {"n": {"0": 9}}}}}
    assert frame(js, before, **moved)["a"]["rows"] == [{"id": 2, "n": 9}, {"id": 1, "n": 1}]


def test_columns_of_rows_are_set_whole_or_by_index(js: Modules) -> None:
    before = twin(a={"rows": [{"n": 1, "m": 1}, {"n": 2, "m": 2}]})
    after = frame(js, before, cols={"a": {"rows": {"n": [7, 8], "m": {"1": 9, "5": 0}}}})
    assert after["a"]["rows"] == [{"n": 7, "m": 1}, {"n": 8, "m": 9}]


def test_a_server_that_was_started_again_does_not_take_what_the_page_saw(js: Modules) -> None:
    old = {"step": "1s", "t": [1, 2, 9], "in": [10, 20, 90], "stages": {"s": {"w": [1, 2, 9]}}}
    new = {"step": "1s", "t": [7], "in": [70], "out": [7], "stages": {"s": {"w": [7]}}}
    before = {**twin(h=old), "on": "/", "boot": "a"}
    again = js.call("reduce", before, "state", {**twin(h=new), "on": "/", "boot": "b"})
    assert again["sections"]["h"] == {
        "step": "1s",
        "t": [1, 2, 7],
        "in": [10, 20, 70],
        "out": [None, None, 7],
        "stages": {"s": {"w": [1, 2, 7]}},
    }
    same = js.call("reduce", before, "state", {**twin(h=new), "on": "/", "boot": "a"})
    assert same["sections"] == again["sections"], "a state has the last two minutes only"
    tagged = js.call("reduce", before, "state", {**twin(h=new), "on": "/?tag=a", "boot": "a"})
    assert tagged["sections"] == again["sections"]
    other = js.call("reduce", before, "state", {**twin(h=new), "name": "x", "boot": "a"})
    assert other["sections"]["h"] == new


def test_columns_are_extended_by_the_points_before_theirs(js: Modules) -> None:
    old, new = {"t": [1, 2, 5], "in": [1, 2, 5]}, {"t": [2, 3, 5], "in": [7, 8, 9], "step": "1s"}
    whole = js.call("extended", old, new, 100)
    assert whole == {"t": [1, 2, 3, 5], "in": [1, 7, 8, 9], "step": "1s"}
    assert js.call("extended", None, new, 2) == {"t": [3, 5], "in": [8, 9], "step": "1s"}
    assert js.call("extended", old, {"t": [], "in": []}, 9) == old, "a server that began just now"


@pytest.mark.parametrize(
    ("t", "gap"), [([], 0), ([5000], 0), ([0, 1000, 3400], 0), ([0, 9000, 10000, 20000], 20000)]
)
def test_the_newest_gap_is_known_by_the_point_after_it(js: Modules, t: list[int], gap: int) -> None:
    assert js.call("gapIn", t, 1000) == gap


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


def test_a_tail_says_how_many_came_while_its_stream_was_away(js: Modules) -> None:
    first = js.call("reduce", None, "state", twin(peek=peek(0, 2, 1, 2)))
    after = js.call("reduce", first, "peek", peek(5, 9, 8, 9, skipped=2))["sections"]["peek"]
    assert seqs(after) == [9, 8, "5 left out", 2, 1]
    assert after["came"] == 9


def test_a_topic_made_anew_begins_a_tail_of_its_own(js: Modules) -> None:
    first = js.call("reduce", None, "state", twin(peek=peek(0, 9, 8, 9, skipped=7)))
    anew = js.call("reduce", first, "peek", peek(0, 2, 1, 2))
    assert seqs(anew["sections"]["peek"]) == [2, 1]
    assert anew["sections"]["peek"]["to_seq"] == anew["sections"]["peek"]["head_seq"] == 2
    assert anew["sections"]["peek"]["came"] == 11
    later = js.call("reduce", anew, "peek", peek(2, 3, 3))
    assert seqs(later["sections"]["peek"]) == [3, 2, 1]


def test_a_tail_is_bounded(js: Modules) -> None:
    kept = js.value("KEPT_TAIL")
    long = js.call("tail", None, peek(0, kept + 5, *range(1, kept + 6)))
    assert (len(long["items"]), long["items"][0]["seq"]) == (kept, kept + 5)


def test_older_columns_go_on_with_later_points_and_none_is_there_twice(js: Modules) -> None:
    older = {"step": "1m", "t": [1, 2], "in": [5, 6], "in_min": [4, 5]}
    newer = {"t": [2, 3], "in": [7, 8], "out": [1, 1]}
    whole = js.call("followed", older, newer)
    assert whole == {"t": [1, 2, 3], "in": [5, 6, 8], "in_min": [4, 5, None]}
    assert js.call("followed", whole, newer) == whole
    assert js.call("followed", {"t": [], "in": []}, newer) == {"t": [2, 3], "in": [7, 8]}


def test_a_gap_in_time_is_a_gap_in_the_chart(js: Modules) -> None:
    shown = js.call("windowed", [1000, 2000, 9000, 10000], [[1, 2, 3, 4]], 2000, 1000)
    assert shown == [[2, 3, 9, 10], [2, None, 3, 4]]


def test_a_late_step_is_not_a_gap(js: Modules) -> None:
    assert js.call("windowed", [0, 2500, 3400], [[1, 2, 3]], 0, 1000)[1] == [1, 2, 3]
