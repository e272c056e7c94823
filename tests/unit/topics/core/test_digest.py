"""Digests of partitions: the same for the same records, wherever they are kept."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.cold_row import ColdBlock
from penstock.topics.core.digest import capture, capture_itself, digest, hash_cold, hash_hot
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.record import make_record
from penstock.topics.core.record_row import RecordRow, SlotRun
from penstock.topics.persist.data_dir import ColdFiles
from penstock.topics.persist.segments import SegmentHead, read_spilled, spilled_bytes
from penstock.topics.persist.spill import SpillFile


class Pair:
    """A partition, and a copy that gets its entries from the log."""

    def __init__(self) -> None:
        self.one, self.other = Partition(), Partition()
        self.one.registry.is_replicated = True
        self.now_ms = 1_000

    def do(self, decided: Any) -> None:
        assert isinstance(decided, DecidedChange)
        self.one.stage(decided)
        self.one.apply_all(decided.entries)
        self.other.apply_all(decode_entries(encode_entries(decided.to_log)))
        self.now_ms += 10

    def write(self, topic: str, *values: int, key: str | None = None) -> None:
        records = [make_record(b"%d" % value, tag="t") for value in values]
        write = WriteRequest(Batch.of(records), key)
        self.do(self.one.decide_write(topic, write, self.now_ms))


def digest_of(partition: Partition, files: ColdFiles | None = None) -> dict[str, str]:
    found = {"": digest(capture_itself(partition), ())}
    for topic in partition.topics.values():
        captured = capture(partition, topic)
        count = len(captured.items)
        sums = [hash_hot(captured, 0, count // 2)[0], hash_hot(captured, count // 2, count)[0]]
        for block in captured.cold:
            assert files is not None
            is_spilled = block.block.spill is not None
            found_in = read_spilled(block.block) if is_spilled else files.read(block.block).records
            sums.append(hash_cold(block, found_in)[0])
        found[topic.name] = digest(captured, sums)
    return found


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.do(made.one.decide_config("q", {"type": "queue"}, 1_000))
    made.write("t", *range(300), key="k")
    made.write("q", 1, 2, 3)
    request = ClaimRequest("worker", 2, 1_000)
    made.do(made.one.decide_claim("q", [request], made.now_ms, 7))
    made.do(made.one.decide_delete("t", made.now_ms, before_seq=5))
    return made


def test_what_came_by_the_log_has_the_same_digest(pair: Pair) -> None:
    assert digest_of(pair.one) == digest_of(pair.other)


def test_cold_records_count_as_those_in_memory(pair: Pair, tmp_path: Path) -> None:
    files = ColdFiles(tmp_path)
    row = pair.other.topics["t"].row
    runs: list[SlotRun] = list(row.runs(0, 100))
    row.seal(files.write("0-1.segment", SegmentHead(0, "t", 1), runs))
    pair.do(pair.one.decide_delete("t", pair.now_ms, before_seq=50))
    pair.do(pair.one.decide_removal("t", [60, 150], pair.now_ms))
    assert row.cold.count
    assert digest_of(pair.other, files) == digest_of(pair.one)


def test_a_record_that_is_in_a_spilled_and_in_a_permanent_block_counts_once(
    pair: Pair, tmp_path: Path
) -> None:
    """A spilled block is kept until permanent ones have the whole of it."""
    files, spill = ColdFiles(tmp_path), SpillFile(tmp_path)
    row = pair.other.topics["t"].row
    runs: list[SlotRun] = list(row.runs(0, 150))
    row.seal([spilled(row, spill, start, start + 100) for start in (0, 100)])
    row.seal(files.write("0-1.segment", SegmentHead(0, "t", 1), runs))
    blocks = row.cold.blocks
    assert any(a.last_seq >= b.first_seq for a, b in pairwise(blocks)), blocks
    assert digest_of(pair.other, files) == digest_of(pair.one)
    pair.do(pair.one.decide_removal("t", [60, 130, 180], pair.now_ms))
    assert digest_of(pair.other, files) == digest_of(pair.one)


def spilled(row: RecordRow, file: SpillFile, start: int, stop: int) -> ColdBlock:
    first_seq, _, items = row.oldest_hot(stop - start, 1 << 20, start)
    data = spilled_bytes(first_seq, items)
    return ColdBlock(
        "spill", file.append(data), len(data),
        first_seq=first_seq, last_seq=first_seq + len(items) - 1, spill=file,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "differs_in"),
    [
        (lambda other: other.topics["t"].row.remove(17), {"t"}),
        (lambda other: other.queues["q"].forget_leases(), {"q"}),
        (lambda other: other.topics["t"].answers.kept().clear(), set()),
        (lambda other: setattr(other, "term", 9), {""}),
        (lambda other: other.topics.pop("q"), {"q"}),
        (lambda other: setattr(other.topics["t"], "reserved_seq", 9), {"t"}),
    ],
    ids=["record", "leases", "a copy", "term", "topic", "seqs set aside"],
)
def test_each_difference_shows_in_its_topic(pair: Pair, change: Any, differs_in: set[str]) -> None:
    change(pair.other)
    one, other = digest_of(pair.one), digest_of(pair.other)
    assert {name for name in one if one.get(name) != other.get(name)} == differs_in


def test_a_record_that_was_changed_or_moved_shows(pair: Pair) -> None:
    pair.write("u", 1, 2)
    row = pair.other.topics["u"].row
    row.remove(1)
    row.remove(2)
    pair.other.topics["u"].row = type(row)(0)
    pair.other.topics["u"].row.extend(Batch.of([make_record(b"2", tag="t")]), 1_000)
    pair.other.topics["u"].row.extend(Batch.of([make_record(b"1", tag="t")]), 1_000)
    assert digest_of(pair.one)["u"] != digest_of(pair.other)["u"]


def test_records_that_only_the_leader_has_are_not_compared(pair: Pair) -> None:
    pair.do(pair.one.decide_config("e", {"durability": "ephemeral"}, pair.now_ms))
    pair.write("e", 1, 2, 3)
    captured = capture(pair.one, pair.one.topics["e"])
    assert not captured.is_compared
    assert digest_of(pair.one) == digest_of(pair.other)
