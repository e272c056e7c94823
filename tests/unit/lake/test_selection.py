"""Which rows count: at a snapshot, between two, and when a rewrite moved them."""

from __future__ import annotations

import numpy as np

from penstock.lake.compact import Candidate, CompactionPolicy, shape_of, to_merge, to_rewrite
from penstock.lake.model import DataFile, DeleteFile
from penstock.lake.selection import (
    FileHistory,
    FileRows,
    counted_changes,
    history,
    live,
    net_changes,
)


def file(number: int, rows: int, begin: int, end: int | None = None, **more: object) -> DataFile:
    return DataFile(number, f"{number}.parquet", rows, 100, 10, begin, end, **more)  # type: ignore[arg-type]


def story(
    data: DataFile, deleted: dict[int, int] | None = None, first: int | None = None
) -> FileHistory:
    gone = deleted or {}
    ids = None if first is None else np.arange(first, first + data.record_count)
    return history(data, None, np.array(list(gone), int), np.array(list(gone.values()), int), ids)


def places(found: list[FileRows]) -> dict[int, list[int] | None]:
    return {f.file.id: None if f.positions is None else f.positions.tolist() for f in found}


def test_rows_are_there_from_their_snapshot_until_they_are_deleted() -> None:
    data = story(file(1, 4, begin=2, end=9), {1: 5, 3: 7})
    assert live(data, 1).count == 0
    assert live(data, 4).positions is None
    assert places([live(data, 6)]) == {1: [0, 2, 3]}
    assert live(data, 9).count == 0


def test_a_position_deleted_twice_left_the_first_time() -> None:
    data = history(file(1, 2, 1), None, np.array([0, 0]), np.array([7, 4]))
    assert live(data, 4).count == 1


def test_a_row_that_came_and_went_in_between_is_no_change() -> None:
    inserted, deleted = net_changes([story(file(1, 3, begin=5), {0: 6, 1: 9})], 4, 8)
    assert places(inserted) == {1: [1, 2]}
    assert deleted == []


def test_a_file_that_ended_lost_the_rows_that_were_left() -> None:
    inserted, deleted = net_changes([story(file(1, 3, begin=1, end=6), {0: 2})], 4, 8)
    assert (inserted, places(deleted)) == ([], {1: [1, 2]})


def test_a_rewrite_moves_rows_and_changes_none() -> None:
    old = story(file(1, 4, begin=1, end=6), {0: 3}, first=0)
    new = FileHistory(file(2, 3, begin=6), np.full(3, 6), np.full(3, 2**62), np.array([1, 2, 3]))
    assert net_changes([old, new], 4, 8, rewrites={6}) == ([], [])
    inserted, deleted = net_changes([old, new], 2, 8, rewrites={6})
    assert (inserted, places(deleted)) == ([], {1: [0]})


def test_a_row_deleted_after_it_moved_is_told_once_and_from_where_it_was() -> None:
    old = story(file(1, 3, begin=1, end=6), first=0)
    new = FileHistory(file(2, 3, begin=6), np.full(3, 6), np.array([7, 2**62, 2**62]), np.arange(3))
    inserted, deleted = net_changes([old, new], 4, 8, rewrites={6})
    assert (inserted, places(deleted)) == ([], {1: [0]})


def test_a_row_inserted_before_it_moved_is_told_once_and_from_where_it_is() -> None:
    old = story(file(1, 2, begin=5, end=6), first=0)
    new = FileHistory(file(2, 2, begin=6), np.full(2, 6), np.full(2, 2**62), np.arange(2))
    inserted, deleted = net_changes([old, new], 4, 8, rewrites={6})
    assert (places(inserted), deleted) == ({2: None}, [])


def test_changed_rows_are_counted_by_the_catalog() -> None:
    first, second = DeleteFile(1, 1, "d", 3, 4, end=6), DeleteFile(2, 1, "e", 5, 6)
    worn = file(1, 10, begin=1, deletes=(first, second), inlined_deletes=((9, 3), (8, 7)))
    assert [counted_changes(worn, after, 8) for after in (0, 1, 4, 6, 7)] == [3, 7, 3, 1, 0]
    assert counted_changes(worn, 2, 5) == 4, "what is deleted later does not count yet"
    assert counted_changes(file(1, 10, begin=5), 4, 8) == 10
    assert counted_changes(file(1, 10, begin=5, end=6), 4, 8) == 0, "it came and went"
    assert counted_changes(file(1, 10, begin=1, end=6, deletes=(first,)), 4, 8) == 7
    assert counted_changes(file(1, 10, begin=1, end=9), 4, 8) == 0


def test_rows_that_only_moved_are_not_counted_as_changes() -> None:
    old = file(1, 10, begin=1, end=6, inlined_deletes=((0, 5),))
    new = file(2, 9, begin=6, inlined_deletes=((0, 7), (1, 7)))
    assert [counted_changes(each, 4, 8, {6}) for each in (old, new)] == [1, 2]
    ended = file(2, 9, begin=6, end=7)
    assert counted_changes(ended, 4, 8, {6}) == 9, "its rows were there before they moved"


def test_of_a_file_of_several_snapshots_a_share_is_counted() -> None:
    merged = file(1, 100, begin=1, partial_max=10)
    assert [counted_changes(merged, after, 10) for after in (1, 6, 9, 10)] == [90, 40, 10, 0]
    deletes = DeleteFile(1, 1, "d", 100, 1, partial_max=10)
    worn = file(1, 1_000, begin=1, deletes=(deletes,))
    assert [counted_changes(worn, after, 10) for after in (0, 6, 9, 10)] == [900, 40, 10, 0]


def test_small_files_of_one_shape_are_merged_in_packs() -> None:
    policy = CompactionPolicy(target_bytes=250, small_bytes=150, files_min=2)
    many = [Candidate(file(n, 1, begin=n), 0, 1) for n in range(5)]
    assert [[f.id for f in pack] for pack in to_merge(many, policy)] == [[0, 1], [2, 3]]
    most = CompactionPolicy(target_bytes=250, small_bytes=150, files_min=2, files_max=3)
    assert [[f.id for f in pack] for pack in to_merge(many, most)] == [[0, 1]]
    other = Candidate(file(9, 1, begin=9), 0, 2)
    unsure = Candidate(file(10, 1, begin=9), 0, None)
    worn = Candidate(file(11, 1, 9, deletes=(DeleteFile(1, 11, "d", 1, 9),)), 1, 1)
    assert to_merge([many[0], other, unsure, worn], policy) == []


def test_files_that_lost_enough_rows_are_rewritten() -> None:
    policy = CompactionPolicy(deleted_share_min=0.5)
    worn, fresh = Candidate(file(1, 4, 1), 2, None), Candidate(file(2, 4, 1), 1, None)
    assert [[f.id for f in pack] for pack in to_rewrite([worn, fresh], policy)] == [[1]]


def test_a_file_whose_rows_span_two_schema_versions_has_no_shape() -> None:
    assert shape_of(file(1, 1, begin=5), [1, 4, 8]) == 4
    assert shape_of(file(1, 1, begin=5, partial_max=7), [1, 4, 8]) == 4
    assert shape_of(file(1, 1, begin=5, partial_max=8), [1, 4, 8]) is None
    assert shape_of(file(1, 1, begin=5), []) is None
