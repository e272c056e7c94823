"""Which files to merge, and which to rewrite without their deleted rows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.lake.model import DataFile

MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When files are worth rewriting.

    Files below `small_bytes` are merged up to `target_bytes`, at least `files_min` at a time; a
    file that lost `deleted_share_min` of its rows is rewritten without them.
    """

    target_bytes: int = 128 * MEBIBYTE
    small_bytes: int = 32 * MEBIBYTE
    files_min: int = 4
    deleted_share_min: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.small_bytes <= self.target_bytes:
            raise Rejected(
                f"expected small_bytes from 1 to target_bytes ({self.target_bytes}), "
                f"found {self.small_bytes}"
            )
        if self.files_min < 2:
            raise Rejected(f"expected to merge at least 2 files, found {self.files_min}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live file, the number of its deleted rows, and its column shape.

    `shape` is the first snapshot of the schema version that all its rows belong to, or None if they
    belong to several.
    """

    file: DataFile
    deleted: int
    shape: int | None


def to_rewrite(candidates: Iterable[Candidate], policy: CompactionPolicy) -> list[list[DataFile]]:
    """Groups of files to rewrite without their deleted rows, each group as one file."""
    worn = [
        candidate
        for candidate in candidates
        if candidate.deleted
        and candidate.deleted >= policy.deleted_share_min * candidate.file.record_count
    ]
    groups: dict[object, list[DataFile]] = defaultdict(list)
    for candidate in worn:
        groups[candidate.file.partition_id, candidate.file.partition].append(candidate.file)
    return [pack for files in groups.values() for pack in _packs(files, policy.target_bytes)]


def to_merge(candidates: Iterable[Candidate], policy: CompactionPolicy) -> list[list[DataFile]]:
    """Groups of small files without deletes, of one shape and partition, oldest first."""
    groups: dict[object, list[DataFile]] = defaultdict(list)
    for candidate in candidates:
        file = candidate.file
        untouched = not file.deletes and not file.inlined_deletes
        if untouched and candidate.shape is not None and file.size_bytes < policy.small_bytes:
            groups[candidate.shape, file.partition_id, file.partition].append(file)
    packs = [pack for files in groups.values() for pack in _packs(files, policy.target_bytes)]
    return [pack for pack in packs if len(pack) >= policy.files_min]


def shape_of(file: DataFile, versions: Sequence[int]) -> int | None:
    """The schema version (its first snapshot) in which all rows of a file were written."""
    last = file.partial_max or file.begin
    before = [begin for begin in versions if begin <= file.begin]
    if not before or any(file.begin < begin <= last for begin in versions):
        return None
    return max(before)


def _packs(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    pack: list[DataFile] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.begin, file.id)):
        if pack and size + file.size_bytes > target_bytes:
            yield pack
            pack, size = [], 0
        pack.append(file)
        size += file.size_bytes
    if pack:
        yield pack
