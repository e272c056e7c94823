"""The local journal, on every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.journal import LocalJournal, partitions_of
from penstock.log.queues import Stopped
from penstock.log.store import Compacted, LogStore, Operation
from penstock.log.stores import open_store
from penstock.log.stores.memory import MemoryStore
from tests.unit.log.journals import LoopJournal

KINDS = ["memory", "segment", "sqlite", "rocksdb"]
KEPT = KINDS[1:]


def open_log(kind: str, path: Path, partitions: int, **options: int) -> LoopJournal:
    store: LogStore = open_store(kind, path / "log", **options)
    try:
        return LoopJournal(store, partitions)
    except BaseException:
        store.close()
        raise


@pytest.mark.parametrize("kind", KINDS)
def test_appends_come_back_in_order(kind: str, tmp_path: Path) -> None:
    with open_log(kind, tmp_path, 4) as log:
        for answer in [log.submit(n % 4, b"%d" % n) for n in range(400)]:
            log.wait(answer)
        for partition in range(4):
            assert log.payloads(partition) == [b"%d" % n for n in range(partition, 400, 4)]
        assert log.journal.bounds(0).last_index == 100


@pytest.mark.parametrize("kind", KEPT)
def test_everything_is_there_after_closing_and_opening_again(kind: str, tmp_path: Path) -> None:
    for life in range(3):
        with open_log(kind, tmp_path, 2) as log:
            log.append(1, b"life %d" % life)
            assert log.payloads(1) == [b"life %d" % n for n in range(life + 1)]


def test_stop_makes_everything_taken_durable_and_answers_it(tmp_path: Path) -> None:
    log = open_log("segment", tmp_path, 8)
    answers = [log.submit(n % 8, b"x" * 100) for n in range(4_000)]
    log.close()
    assert all(answer.done() and answer.exception() is None for answer in answers)
    with pytest.raises(Stopped):
        log.journal.append(0, b"late", lambda _: None, sync=True)
    with open_log("segment", tmp_path, 8) as again:
        assert [len(again.payloads(partition)) for partition in range(8)] == [500] * 8


class Failing(MemoryStore):
    """Refuses what partition 0 writes, as long as it is told to."""

    fails = False

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        failed = {0: OSError("disk")} if self.fails else {}
        good = [each for each in group if each.partition not in failed]
        return {**failed, **super().write(good, sync=sync)}


def test_after_a_store_error_the_log_goes_on_without_a_gap() -> None:
    store = Failing()
    with LoopJournal(store, 1) as log:
        log.append(0, b"one")
        store.fails = True
        for answer in [log.submit(0, b"lost") for _ in range(20)]:
            with pytest.raises((OSError, Rejected)):
                log.wait(answer)
        store.fails = False
        log.journal.resume(0)
        log.append(0, b"two")
        assert log.payloads(0) == [b"one", b"two"]


@pytest.mark.parametrize("kind", KINDS)
def test_compacted_entries_are_gone_and_the_rest_is_there(kind: str, tmp_path: Path) -> None:
    with open_log(kind, tmp_path, 2) as log:
        for number in range(1, 11):
            log.append(0, b"%d" % number)
        log.compact(0, 6)
        with pytest.raises(Compacted):
            log.payloads(0, 6)
        assert log.payloads(0, 7) == [b"7", b"8", b"9", b"10"]
        with pytest.raises(Rejected):
            log.compact(0, 99)
        log.append(0, b"11")
        assert log.payloads(0, 11) == [b"11"], "a refused compaction harms nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_makes_earlier_entries_durable_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    with open_log(kind, tmp_path, 4) as log:
        log.wait(log.submit(1, b"unsynced", sync=False))
        assert log.journal.unsynced
        before = log.store.status().syncs
        log.sync()
        assert not log.journal.unsynced
        assert log.store.status().syncs > before
        assert log.payloads(1) == [b"unsynced"]
        assert [log.journal.bounds(number).last_index for number in range(4)] == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", KEPT)
def test_another_number_of_partitions_is_refused_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    with open_log(kind, tmp_path, 4) as log:
        log.append(3, b"x")
        assert partitions_of(log.store) == 4
    for wrong in (3, 8):
        with pytest.raises(Rejected, match=f"made with 4 partitions .* opened with {wrong}"):
            open_log(kind, tmp_path, wrong)
    with open_log(kind, tmp_path, 4) as log:
        log.append(3, b"y")
        assert log.payloads(3) == [b"x", b"y"]


@pytest.mark.parametrize("kind", KEPT)
def test_a_file_where_the_directory_should_be_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a log")
    with pytest.raises(Rejected, match="is a file: a store needs a directory"):
        open_log(kind, tmp_path, 1)


def test_the_counters_say_what_was_written(tmp_path: Path) -> None:
    with open_log("segment", tmp_path, 2) as log:
        journal: LocalJournal = log.journal
        log.append(0, b"x" * 10)
        counters = journal.counters
        assert (counters.frames, counters.batches, counters.fsyncs) == (1, 1, 1)
        assert (counters.bytes_written, counters.queue_depth_peak) == (10, 1)
        assert sum(counters.fsync_buckets) == 1
        assert (journal.queue_depth, journal.status().refusals) == (0, 0)
        journal.failed(0, OSError("disk"))
        assert (counters.failures, counters.last_failure) == (1, "disk")
