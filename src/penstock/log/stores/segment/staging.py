"""A group being prepared as a block: checked and encoded, nothing changed yet. No IO."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from operator import add
from typing import Any, Final

from crc32c import crc32c

from penstock.kernel.errors import PenstockError, Rejected
from penstock.log.store import (
    Append,
    Compact,
    InstallBoundary,
    Operation,
    SetHardState,
    Sync,
    Truncate,
)
from penstock.log.stores import rules
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.catalog import SegmentCatalog

_PACK_ENTRY: Final = fmt.ENTRY_ROW.pack
_ENTRY: Final = fmt.ENTRY


class Staged(Sequence[Operation]):
    """A group with its encoded block.

    `group`: the operations in the block. `mixed`: there are others than appends. `failed`: the
    errors of the other `asked` operations, by partition.
    """

    __slots__ = (
        "asked", "body", "boundaries", "failed", "group", "lasts", "mixed", "payloads", "rows",
        "table",
    )  # fmt: skip

    def __init__(self, group: Sequence[Operation]) -> None:
        self.asked = group
        self.group = group
        self.failed: dict[int, Exception] = {}
        self.rows: list[bytes] = []
        self.payloads: list[bytes] = []  # as long as the sum of the lengths in the rows
        self.lasts: dict[int, int] = {}
        self.boundaries: dict[int, int] = {}
        self.mixed = False
        self.table = b""
        self.body = b""

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, at: Any) -> Any:
        return self.asked[at]

    def joined(self) -> None:
        """Join payloads and records into the bytes of a block's body."""
        self.table = b"".join(self.rows)
        self.payloads.append(self.table)
        self.body = b"".join(self.payloads)
        if len(self.body) > fmt.BLOCK_BYTES_MAX:
            raise Rejected(
                f"a group of {len(self.body)} bytes is over the limit of {fmt.BLOCK_BYTES_MAX}"
            )


class Refused(Exception):
    """An operation is invalid; its partition's part of the group is left out."""

    def __init__(self, op: Operation, stand: tuple[int, int], cause: Exception) -> None:
        super().__init__()
        self.partition = op.partition
        self.error: Exception
        if isinstance(cause, PenstockError):
            self.error = cause
            return
        self.error = Rejected(f"the operation cannot be encoded: {cause}")
        try:
            rules.admit(op, *stand)
        except PenstockError as error:
            self.error = error
        except TypeError:
            return  # not a violation of the rules


class GroupTooLarge(Exception):
    """A group has more bytes than the caller allows."""


def stage(
    group: Sequence[Operation], catalog: SegmentCatalog, bytes_max: int = fmt.BLOCK_BYTES_MAX
) -> Staged:
    """Stage a group without partitions that have invalid operations, or raise `GroupTooLarge`."""
    failed: dict[int, Exception] = {}
    wanted = group
    while True:
        try:
            staged = _stage(wanted, catalog)
            if bytes_max < fmt.BLOCK_BYTES_MAX and sum(map(len, staged.payloads)) > bytes_max:
                raise GroupTooLarge
            staged.joined()
        except Refused as refused:
            failed[refused.partition] = refused.error
            wanted = [op for op in wanted if op.partition not in failed]
            continue
        except Rejected as error:
            failed.update(rules.all_failed(wanted, error))
            staged = Staged(())
        staged.asked = group
        staged.failed = failed
        return staged


def _stage(group: Sequence[Operation], catalog: SegmentCatalog) -> Staged:
    # Groups of only appends are processed column by column, without a Python loop: two thirds of
    # the time, but three times as long for a single append. Anything unusual goes to the loop
    # below.
    if len(group) == 1:
        return _stage_each(group, catalog)
    staged = _stage_appends(group, catalog) if set(map(type, group)) == {Append} else None
    return staged or _stage_each(group, catalog)


def _stage_appends(group: Sequence[Any], catalog: SegmentCatalog) -> Staged | None:
    partitions, batches = zip(*group, strict=True)
    counts = list(map(len, batches))
    befores = list(map(catalog.lasts.get, partitions, repeat(0)))
    lasts = list(map(add, befores, counts))
    staged = Staged(group)
    staged.lasts = dict(zip(partitions, lasts, strict=True))
    if len(staged.lasts) < len(partitions) or 0 in counts:
        return None
    indexes, terms, payloads = zip(*chain.from_iterable(batches), strict=True)
    if counts.count(1) == len(counts):
        expected = tuple(lasts)
    else:
        partitions = tuple(chain.from_iterable(map(repeat, partitions, counts)))
        spans = map(range, map(add, befores, repeat(1)), map(add, lasts, repeat(1)))
        expected = tuple(chain.from_iterable(spans))
    if indexes != expected or max(terms) > rules.NUMBER_MAX:
        return None
    lengths, crcs = map(len, payloads), map(crc32c, payloads)
    try:
        packed = map(_PACK_ENTRY, indexes, terms, lengths, crcs, partitions, repeat(_ENTRY))
        staged.rows, staged.payloads = list(packed), list(payloads)
    except (struct.error, TypeError):
        return None
    return staged


def _stage_each(group: Sequence[Operation], catalog: SegmentCatalog) -> Staged:
    staged = Staged(group)
    lasts = staged.lasts
    op: Any = None
    try:
        for op in group:
            partition = op.partition
            last = lasts[partition] if partition in lasts else catalog.lasts.get(partition, 0)
            if type(op) is Append:
                lasts[partition] = _stage_append(op, last, staged)
            else:
                _stage_other(op, catalog, staged)
    except (struct.error, TypeError, OverflowError, PenstockError) as error:
        raise Refused(op, _stand(op.partition, catalog, staged), error) from error
    return staged


def _stage_append(op: Append, last: int, staged: Staged) -> int:
    partition, entries = op
    rules.admit(op, 0, last)
    for index, term, payload in entries:
        row = (index, term, len(payload), crc32c(payload), partition, _ENTRY)
        staged.rows.append(_PACK_ENTRY(*row))
        staged.payloads.append(payload)
    return last + len(entries)


def _stage_other(op: Operation, catalog: SegmentCatalog, staged: Staged) -> None:
    partition = op.partition
    boundary, last = _stand(partition, catalog, staged)
    moved = rules.admit(op, boundary, last)
    match op:
        case SetHardState(_, term, vote):
            row = (vote, term, 0, partition, fmt.HARD_STATE)
        case Sync():
            return  # nothing to write: the store syncs its earlier writes
        case Truncate(_, from_index):
            if from_index > last:
                return
            row = (from_index, 0, 0, partition, fmt.TRUNCATE)
        case Compact(_, upto_index):
            if upto_index <= boundary:
                return
            row = (upto_index, _compacted_term(op, catalog, staged), 0, partition, fmt.COMPACT)
        case InstallBoundary(_, index, term):
            row = (index, term, 0, partition, fmt.BOUNDARY)
        case _:
            raise Rejected(f"not an operation of a log: {op!r}")
    staged.rows.append(fmt.RECORD.pack(*row))
    staged.boundaries[partition], staged.lasts[partition] = moved
    staged.mixed = True


def _stand(partition: int, catalog: SegmentCatalog, staged: Staged) -> tuple[int, int]:
    """Boundary and last index of a partition at this point of the group."""
    boundary = staged.boundaries.get(partition)
    last = staged.lasts.get(partition)
    return (
        catalog.boundary(partition) if boundary is None else boundary,
        catalog.lasts.get(partition, 0) if last is None else last,
    )


def _compacted_term(compact: Compact, catalog: SegmentCatalog, staged: Staged) -> int:
    """The term of the last compacted entry, which may be part of the same group."""
    term: int | None = None
    for op in staged.group:
        if op is compact:
            break
        if isinstance(op, Append) and op.partition == compact.partition:
            term = next((e[1] for e in op.entries if e[0] == compact.upto_index), term)
    return catalog.term_at(compact.partition, compact.upto_index) if term is None else term
