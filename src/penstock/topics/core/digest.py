"""What tells whether two nodes have the same partition: a number for each topic.

Where a record is, in memory or in which file, is the node's own affair and must not show. So the
records of a topic are a sum over each of them, in any order. `capture` takes a topic as it is now,
at the cost of copying a few arrays; its records are hashed later, while the topic goes on.

Records that were never logged are with the leader alone: a topic that has any is not compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from penstock.topics.core.batch import Item, unpacked
from penstock.topics.core.cold_row import ColdBlock, ColdRow
from penstock.topics.core.partition import Partition
from penstock.topics.core.record import RawRecord
from penstock.topics.core.space import parts_of, state_of
from penstock.topics.core.topic import Topic

ITSELF: Final = ""
"""Stands for what a partition has besides its topics."""
_BYTES: Final = 8
_MASK: Final = (1 << 8 * _BYTES) - 1


class CapturedBlock(NamedTuple):
    """The slots of a block of cold records: those of size 0 have no record any more."""

    block: ColdBlock
    first_seq: int
    times: array[int]
    sizes: array[int]


class CapturedTopic(NamedTuple):
    """A topic at one index: the hash of everything but its records, and where those are."""

    name: str
    plain: int
    first_seq: int = 0
    times: array[int] = array("q")
    items: tuple[Item, ...] = ()
    cold: tuple[CapturedBlock, ...] = ()
    is_compared: bool = True


def capture_itself(partition: Partition) -> CapturedTopic:
    """What a partition has besides its topics: its routers, epoch, term and members.

    Not its time: on the leader that also passes by records that are not logged.
    """
    routers = [router for router in partition.routers if router.config.dest in partition.topics]
    facts = (partition.epoch, partition.term, partition.members, routers)
    return CapturedTopic(ITSELF, _hash(_ENCODER.encode(facts)))


def capture(partition: Partition, topic: Topic) -> CapturedTopic:
    """A topic as it is now; nothing may be staged."""
    name, row = topic.name, topic.row
    if topic.config.durability == "ephemeral" or topic.has_unlogged:
        facts = (name, topic.config, topic.epoch)
        return CapturedTopic(name, _hash(_ENCODER.encode(facts)), is_compared=False)
    cold = tuple(_capture_cold(row.cold))
    first_seq, times, items = row.hot()
    return CapturedTopic(name, _plain(partition, topic), first_seq, times, tuple(items), cold)


def _capture_cold(cold: ColdRow) -> Iterator[CapturedBlock]:
    """The blocks, each from where the one before it ends: a permanent and a spilled one overlap."""
    next_seq = cold.base_seq
    for block in cold.blocks:
        first_seq = max(block.first_seq, next_seq)
        if first_seq <= block.last_seq:
            yield CapturedBlock(block, first_seq, *cold.span(first_seq, block.last_seq))
            next_seq = block.last_seq + 1


def hash_hot(captured: CapturedTopic, start: int, stop: int) -> tuple[int, int]:
    """The sum over the records in memory at some positions, and how many there are."""
    first_seq = captured.first_seq + start
    records = unpacked(list(captured.items[start:stop]), first_seq)
    return _sum(first_seq, captured.times[start:stop], records)


def hash_cold(captured: CapturedBlock, records: list[RawRecord | None]) -> tuple[int, int]:
    """The sum over the records of a block that its topic still has, and how many there are."""
    skipped = captured.first_seq - captured.block.first_seq
    live = [
        record if size else None
        for record, size in zip(records[skipped:], captured.sizes, strict=True)
    ]
    return _sum(captured.first_seq, captured.times, live)


def digest(captured: CapturedTopic, sums: Iterable[int]) -> str:
    """The digest of a topic, with the sums over all its records."""
    return f"{(captured.plain + sum(sums)) & _MASK:0{2 * _BYTES}x}"


def _plain(partition: Partition, topic: Topic) -> int:
    """The hash of what a topic knows besides its records."""
    found = blake2b(digest_size=_BYTES)
    for part in _facts(partition, topic):
        found.update(_ENCODER.encode(part))
    return int.from_bytes(found.digest(), "big")


def _facts(partition: Partition, topic: Topic) -> Iterator[object]:
    yield (
        topic.name, topic.config, topic.epoch, topic.now_ms, topic.last_write_ms, topic.floors,
        list(topic.fed.values()), topic.holes, topic.row.head_seq, topic.reserved_seq,
    )  # fmt: skip
    yield list(topic.answers.kept().items())
    queue = partition.queues.get(topic.name)
    if queue is not None:
        yield queue.state()
    space = partition.spaces.get(topic.name)
    if space is not None:
        yield from parts_of(state_of(space.core, topic.earliest_seq))


def _sum(
    first_seq: int, times: Iterable[int], records: Iterable[RawRecord | None]
) -> tuple[int, int]:
    total = count = 0
    encode = _RECORDS.encode
    for seq, (ts_ms, record) in enumerate(zip(times, records, strict=True), first_seq):
        if record is not None:
            total += _hash(b"%d %d %b" % (seq, ts_ms, encode(record)))
            count += 1
    return total & _MASK, count


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_BYTES).digest(), "big")


_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORDS: Final = msgspec.json.Encoder()
