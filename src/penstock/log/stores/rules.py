"""Which operations are valid for a partition: the same rules for every store. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.kernel.errors import PenstockError, Rejected
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    Compacted,
    InstallBoundary,
    LogEntry,
    NotContiguous,
    Operation,
    SetHardState,
    Truncate,
)

PARTITION_MAX: Final = (1 << 32) - 1
NUMBER_MAX: Final = (1 << 63) - 1  # the largest number every engine supports, sqlite included
PAYLOAD_BYTES_MAX: Final = 512 << 20


def payload_bytes(group: Iterable[Operation]) -> int:
    """The total size of a group's payloads."""
    return sum([len(entry[2]) for op in group if type(op) is Append for entry in op[1]])


def admit(op: Operation, boundary: int, last: int) -> tuple[int, int]:
    """The boundary and last index after an operation, or raise why it is invalid.

    `boundary` and `last` are those of the operation's partition at this point of the group.
    """
    _check_partition(op.partition)
    match op:
        case Append():
            last = _admit_entries(op, last)
        case Truncate(partition, from_index):
            if from_index <= boundary:
                raise Rejected(
                    f"partition {partition} cannot be truncated from index {from_index} on: its "
                    f"log begins after {boundary}"
                )
            last = min(last, from_index - 1)
        case Compact(partition, upto_index):
            if upto_index > last:
                raise Rejected(
                    f"partition {partition} cannot be compacted up to index {upto_index}: its last "
                    f"is {last}"
                )
            boundary = max(boundary, upto_index)
        case InstallBoundary(partition, index, term):
            if index < boundary:
                raise Rejected(
                    f"partition {partition} begins after index {boundary}: a snapshot at {index} "
                    "is older"
                )
            _check_number("index", index)
            _check_number("term", term)
            boundary = last = index
        case SetHardState(_, term, vote):
            _check_number("term", term)
            _check_number("vote", vote)
    return boundary, last


def _admit_entries(op: Append, last: int) -> int:
    partition, entries = op
    for index, term, payload in entries:
        if index != last + 1:
            raise NotContiguous(
                f"partition {partition}: expected index {last + 1}, found {index}",
                partition=partition,
                expected=last + 1,
                found=index,
            )
        _check_number("term", term)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise Rejected(
                f"partition {partition}: a payload of {len(payload)} bytes is over the limit of "
                f"{PAYLOAD_BYTES_MAX}"
            )
        last += 1
    _check_number("index", last)
    return last


def check_read(partition: int, first_index: int, boundary: int) -> None:
    """Refuse a read at or below the boundary."""
    if first_index <= boundary:
        raise Compacted(
            f"partition {partition}: entry {first_index} was compacted; the log begins after "
            f"{boundary}",
            partition=partition,
            boundary=boundary,
            found=first_index,
        )


def check_term_at(partition: int, index: int, bounds: Bounds) -> None:
    """Refuse a term below the boundary or past the end."""
    if index < bounds.boundary_index:
        raise Compacted(
            f"partition {partition}: entry {index} was compacted; the log begins after "
            f"{bounds.boundary_index}",
            partition=partition,
            boundary=bounds.boundary_index,
            found=index,
        )
    if index > bounds.last_index:
        raise Rejected(
            f"partition {partition} has no entry {index}: its last is {bounds.last_index}",
            partition=partition,
            last=bounds.last_index,
            found=index,
        )


def refusals(group: Sequence[Operation], bounds: Callable[[int], Bounds]) -> dict[int, Exception]:
    """The errors of a group's invalid operations by partition; `bounds` gives current bounds."""
    failed: dict[int, Exception] = {}
    stands: dict[int, tuple[int, int]] = {}
    for op in group:
        partition = op.partition
        if partition in failed:
            continue
        if partition not in stands:
            now = bounds(partition)
            stands[partition] = now.boundary_index, now.last_index
        try:
            stands[partition] = admit(op, *stands[partition])
        except PenstockError as error:
            failed[partition] = error
    return failed


def within(entries: Iterable[LogEntry], max_bytes: int) -> list[LogEntry]:
    """As many entries as a limit of payload bytes allows, and at least one if any exists."""
    taken: list[LogEntry] = []
    total = 0
    for entry in entries:
        total += len(entry.payload)
        if taken and total > max_bytes:
            break
        taken.append(entry)
    return taken


def all_failed(group: Sequence[Operation], error: PenstockError) -> dict[int, Exception]:
    """The same error for every partition of a group."""
    return {op.partition: error for op in group}


def _check_partition(partition: int) -> None:
    if not 0 <= partition <= PARTITION_MAX:
        raise Rejected(f"partition {partition} is outside of 0 to {PARTITION_MAX}")


def _check_number(what: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise Rejected(f"{what} {value} is outside of 0 to {NUMBER_MAX}")
