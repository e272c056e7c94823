"""Which rows of a file are visible at a snapshot, or changed between two. Arrays only, no IO.

Every row of a file has a snapshot that inserted it and possibly one that deleted it. A rewrite
(DuckLake's `rewrite_delete`) ends files and begins one with their remaining rows: rows move, but do
not change. Row ids distinguish moved rows from new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.lake.model import DataFile

Positions = npt.NDArray[np.int64]
NEVER: Final = np.iinfo(np.int64).max
"""The end snapshot of a row that has not been deleted."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of one data file by position, or all of them (`positions` is None)."""

    file: DataFile
    positions: Positions | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.file.record_count if self.positions is None else len(self.positions)


def others(rows: FileRows) -> Positions:
    """The positions of all other rows of a file."""
    if rows.positions is None:
        return np.zeros(0, np.int64)
    mask = np.ones(rows.file.record_count, np.bool_)
    mask[rows.positions] = False
    return np.flatnonzero(mask).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FileHistory:
    """When each row of a file was inserted and deleted, and its row id if rows may have moved."""

    file: DataFile
    begins: Positions
    ends: Positions
    row_ids: Positions | None = None


def history(
    file: DataFile,
    begins: Positions | None,
    deleted: Positions,
    deleted_at: Positions,
    row_ids: Positions | None = None,
) -> FileHistory:
    """The full history of a file. For a position deleted twice, the first delete counts."""
    count = file.record_count
    came = np.full(count, file.begin, np.int64) if begins is None else begins
    went = np.full(count, NEVER if file.end is None else file.end, np.int64)
    if len(deleted):
        np.minimum.at(went, deleted, deleted_at)
    return FileHistory(file, came, went, row_ids)


def live(story: FileHistory, at: int) -> FileRows:
    """The rows visible at a snapshot."""
    return _rows(story, (story.begins <= at) & (story.ends > at))


def deleted_within(
    file: DataFile, deleted: Positions, deleted_at: Positions, after: int, until: int
) -> FileRows:
    """The rows of a file that were deleted in a range; of two deletes of a row the first counts."""
    mask = np.zeros(file.record_count, np.bool_)
    mask[deleted[(deleted_at > after) & (deleted_at <= until)]] = True
    mask[deleted[deleted_at <= after]] = False
    return _of_mask(file, mask)


def net_changes(
    stories: Sequence[FileHistory], after: int, until: int, rewrites: Collection[int] = ()
) -> tuple[list[FileRows], list[FileRows]]:
    """The net inserts and deletes after one snapshot, up to and including another.

    A row inserted and deleted within the range is neither. `rewrites` are the snapshots in the
    range that only moved rows; the files they began or ended need row ids.
    """
    inserted: list[FileRows] = []
    deleted: list[FileRows] = []
    moved: list[FileHistory] = []
    for story in stories:
        if is_moved(story.file, rewrites):
            moved.append(story)
            continue
        came = (story.begins > after) & (story.begins <= until) & (story.ends > until)
        went = (story.begins <= after) & (story.ends > after) & (story.ends <= until)
        inserted.append(_rows(story, came))
        deleted.append(_rows(story, went))
    more_in, more_out = _moved_changes(moved, after, until, rewrites)
    return (
        [rows for rows in (*inserted, *more_in) if rows.count],
        [rows for rows in (*deleted, *more_out) if rows.count],
    )


def counted_changes(file: DataFile, after: int, until: int, rewrites: Collection[int] = ()) -> int:
    """How many rows of a file came or went in a range, by what the catalog says of it.

    Where rows of several snapshots share a file, those of the range are taken to have their share
    of it. 0 only if there is no change.
    """
    was_ended = file.end is not None and file.end <= until and file.end not in rewrites
    gone = _gone_by(file, until)
    if file.begin > after and not _is_moved_into(file, rewrites):
        return 0 if was_ended else file.record_count - gone
    before = 0 if file.begin > after else _gone_by(file, after)
    since = max(after, file.begin)
    came = file.record_count - _share(file.record_count, file.begin, file.partial_max, since)
    return came + (file.record_count if was_ended else gone) - before


def _gone_by(file: DataFile, at: int) -> int:
    """How many rows of a file were deleted by a snapshot."""
    listed = sum(snapshot <= at for _, snapshot in file.inlined_deletes)
    known = [_share(d.count, d.begin, d.partial_max, at) for d in file.deletes if d.begin <= at]
    return min(file.record_count, listed + max(known, default=0))


def _share(count: int, begin: int, last: int | None, at: int) -> int:
    """The rows of `count` that are of snapshots up to one, if all had as many."""
    if last is None or last <= at:
        return count
    return count * (at - begin + 1) // (last - begin + 1)


def is_moved(file: DataFile, rewrites: Collection[int]) -> bool:
    """Whether a rewrite may have moved rows into or out of a file."""
    return file.end in rewrites or _is_moved_into(file, rewrites)


def _is_moved_into(file: DataFile, rewrites: Collection[int]) -> bool:
    last = file.partial_max or file.begin
    return any(file.begin <= at <= last for at in rewrites)


def _moved_changes(
    stories: Sequence[FileHistory], after: int, until: int, rewrites: Collection[int]
) -> tuple[list[FileRows], list[FileRows]]:
    """Net changes of rows that rewrites moved between files.

    Among the versions of a row id in these files, the first one visible at `after` is the old one,
    and the one visible at `until` the new one. A row that only moved did not change.
    """
    if not stories:
        return [], []
    moves = np.array(sorted(rewrites), np.int64)
    changed: set[int] = set()
    for story in stories:
        ids = _ids(story)
        came = (story.begins > after) & (story.begins <= until) & ~np.isin(story.begins, moves)
        went = (story.ends > after) & (story.ends <= until) & ~np.isin(story.ends, moves)
        changed.update(ids[came | went].tolist())
    wanted = np.array(sorted(changed), np.int64)
    inserted, deleted = [], []
    for story in stories:
        touched = np.isin(_ids(story), wanted)
        old = (story.begins <= after) & (story.ends > after)
        new = (story.begins <= until) & (story.ends > until)
        inserted.append(_rows(story, touched & new & ~old))
        deleted.append(_rows(story, touched & old & ~new))
    return inserted, deleted


def _ids(story: FileHistory) -> Positions:
    if story.row_ids is None:
        raise ValueError(f"the row ids of data file {story.file.id} were not read")
    return story.row_ids


def _rows(story: FileHistory, mask: npt.NDArray[np.bool_]) -> FileRows:
    return _of_mask(story.file, mask)


def _of_mask(file: DataFile, mask: npt.NDArray[np.bool_]) -> FileRows:
    return FileRows(file) if mask.all() else FileRows(file, np.flatnonzero(mask).astype(np.int64))
