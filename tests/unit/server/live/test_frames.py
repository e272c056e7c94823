from __future__ import annotations

import pytest

from penstock.server.live.frames import changes, joined, last_time, later_points


def rows(*values: int) -> list[dict[str, int | str]]:
    return [{"name": f"t{n}", "kind": "log", "rate": value} for n, value in enumerate(values)]


def test_nothing_changed_is_nothing():
    assert changes({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == {}


def test_a_member_is_put_and_a_lost_one_dropped():
    assert changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": None, "d": 4}) == {
        "drop": ["c"],
        "put": {"b": None, "d": 4},
    }


def test_an_error_replaces_a_section_and_is_replaced_by_one():
    error = {"error": {"code": "no_warehouse", "message": "there is none"}}
    assert changes({"a": 1}, error) == {"set": error}
    assert changes(error, {"a": 1}) == {"set": {"a": 1}}
    assert changes(error, {"error": {"code": "other", "message": ""}})["set"]["error"]


def test_a_few_rows_are_told_by_number_and_many_as_a_column():
    assert changes({"x": rows(1, 2, 3)}, {"x": rows(1, 9, 3)}) == {
        "cols": {"x": {"rate": {"1": 9}}}
    }
    assert changes({"x": rows(1, 2, 3)}, {"x": rows(7, 8, 9)}) == {
        "cols": {"x": {"rate": [7, 8, 9]}}
    }


def test_half_of_the_rows_are_a_column_and_less_are_not():
    half = changes({"x": rows(1, 2, 3, 4)}, {"x": rows(9, 9, 3, 4)})
    less = changes({"x": rows(1, 2, 3, 4)}, {"x": rows(9, 2, 3, 4)})
    assert isinstance(half["cols"]["x"]["rate"], list)
    assert isinstance(less["cols"]["x"]["rate"], dict)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rows(1), rows(1, 2, 3)),
        (rows(1, 2), [{"name": each, "kind": "queue", "rate": 1} for each in "abc"] + rows(5)),
        (rows(1), [{"name": "t0"}]),
        ([1, 2, 3], [4, 5, 3]),
        ([], rows(1)),
    ],
)
def test_other_rows_are_put_whole(old, new):
    assert changes({"x": old}, {"x": new}) == {"put": {"x": new}}


def test_new_rows_before_the_old_ones_are_told_alone():
    old = [{"id": n} for n in range(5)]
    new = [{"id": 9}, {"id": 8}, *old[:3]]
    assert changes({"x": old}, {"x": new}) == {
        "list": {"x": [{"add": [{"id": 9}, {"id": 8}]}, [0, 3]]}
    }


def test_rows_that_change_places_are_not_told_again():
    old = rows(1, 2, 3, 4)
    new = [{**old[3], "rate": 9}, *old[:3]]
    assert changes({"x": old}, {"x": new}) == {
        "list": {"x": [[3, 1], [0, 3]]},
        "cols": {"x": {"rate": {"0": 9}}},
    }


def test_rows_whose_first_members_are_not_enough_are_known_by_two():
    old = [{"source": "a", "target": to, "runs": False} for to in ("x", "y", "z")]
    new = [{**old[0], "runs": True}, {"source": "b", "target": "x", "runs": False}, *old[1:]]
    assert changes({"x": old}, {"x": new}) == {
        "list": {"x": [[0, 1], {"add": [new[1]]}, [1, 2]]},
        "cols": {"x": {"runs": {"0": True}}},
    }


def test_a_row_with_other_members_than_before_is_new():
    old = [{"id": n} for n in range(3)]
    new = [{"id": 0, "more": 1}, *old[1:]]
    assert changes({"x": old}, {"x": new}) == {"list": {"x": [{"add": [new[0]]}, [1, 2]]}}


@pytest.mark.parametrize(("count", "verb"), [(5, "list"), (6, "put")])
def test_a_list_of_which_most_is_new_is_put_whole(count, verb):
    old = [{"id": n} for n in range(5)]
    new = [{"id": 100 + n} for n in range(count)] + old
    assert list(changes({"x": old}, {"x": new})) == [verb]


def test_changes_of_sections_are_one_frame_by_verb():
    told = joined([("a", {"put": {"x": 1}}), ("b", {"put": {"y": 2}, "drop": ["z"]})])
    assert told == {"put": {"a": {"x": 1}, "b": {"y": 2}}, "drop": {"b": ["z"]}}


def test_points_after_a_time_are_cut_from_columns_within_columns():
    columns = {
        "step": "1s",
        "t": [1, 2, 3],
        "in": [4, 5, None],
        "stages": {"parse": {"p": [7, 8, 9]}},
    }
    assert later_points(columns, 1) == {
        "t": [2, 3],
        "in": [5, None],
        "stages": {"parse": {"p": [8, 9]}},
    }
    assert later_points(columns, 3) == {}
    assert last_time(columns) == 3
    assert last_time({"error": {}}) == 0
