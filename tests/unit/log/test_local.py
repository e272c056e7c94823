"""The local log as its users see it, on every store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.executor import PartitionFailed, Phase
from penstock.log.queues import Stopped
from penstock.log.shell import LocalLog, LogOptions
from penstock.log.store import Bounds, Compacted, Damaged
from penstock.log.stores.memory import MemoryStore
from tests.unit.log.gated_store import DEADLINE_S, GatedStore

KINDS = ["memory", "segment", "sqlite", "rocksdb"]


@pytest.mark.parametrize("kind", KINDS)
def test_appends_come_back_in_order(kind: str, tmp_path: Path) -> None:
    with LocalLog.open(kind, tmp_path / "log", partitions=4) as log:
        futures = [log.append(n % 4, b"%d" % n) for n in range(400)]
        assert [f.result(DEADLINE_S) for f in futures] == [n // 4 + 1 for n in range(400)]
        for partition in range(4):
            found = log.read(partition, 1).result(DEADLINE_S)
            assert [e.payload for e in found] == [b"%d" % n for n in range(partition, 400, 4)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_everything_is_there_after_closing_and_opening_again(kind: str, tmp_path: Path) -> None:
    for life in range(3):
        with LocalLog.open(kind, tmp_path / "log", partitions=2) as log:
            assert log.append(1, b"life %d" % life).result(DEADLINE_S) == life + 1
            payloads = [e.payload for e in log.read(1, 1).result(DEADLINE_S)]
            assert payloads == [b"life %d" % n for n in range(life + 1)]


def test_close_makes_everything_taken_durable_and_answers_it(tmp_path: Path) -> None:
    log = LocalLog.open("segment", tmp_path / "log", partitions=8)
    futures = [log.append(n % 8, b"x" * 100) for n in range(4_000)]
    log.close()
    log.close()
    assert all(f.done() for f in futures)
    assert [f.result() for f in futures] == [n // 8 + 1 for n in range(4_000)]
    with pytest.raises(Stopped):
        log.append(0, b"late")


def test_many_threads_append_to_one_partition_without_gaps() -> None:
    with LocalLog.open("memory", partitions=1) as log:
        got: list[list[int]] = [[] for _ in range(8)]

        def write(mine: list[int]) -> None:
            mine.extend(log.append(0, b"x").result(DEADLINE_S) for _ in range(200))

        threads = [threading.Thread(target=write, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(index for mine in got for index in mine) == list(range(1, 1_601))
        assert all(mine == sorted(mine) for mine in got)


def test_after_a_store_error_the_log_goes_on_without_a_gap() -> None:
    store = GatedStore()
    log = LocalLog(store, LogOptions(partitions=1))
    log.wait_ready()
    assert log.append(0, b"one").result(DEADLINE_S) == 1
    store.fail = lambda group: dict.fromkeys([0], OSError("disk"))
    futures = [log.append(0, b"lost") for _ in range(20)]
    for future in futures:
        with pytest.raises((OSError, Rejected)):
            future.result(DEADLINE_S)
    store.fail = lambda _: {}
    assert log.append(0, b"two").result(DEADLINE_S) == 2
    assert [e.payload for e in log.read(0, 1).result(DEADLINE_S)] == [b"one", b"two"]
    log.close()


@pytest.mark.parametrize("kind", KINDS)
def test_compacted_entries_are_gone_and_the_rest_is_there(kind: str, tmp_path: Path) -> None:
    with LocalLog.open(kind, tmp_path / "log", partitions=2) as log:
        for future in [log.append(0, b"%d" % n) for n in range(1, 11)]:
            future.result(DEADLINE_S)
        assert log.compact(0, 6).result(DEADLINE_S) == 6
        with pytest.raises(Compacted):
            log.read(0, 6).result(DEADLINE_S)
        assert [e.index for e in log.read(0, 7).result(DEADLINE_S)] == [7, 8, 9, 10]
        with pytest.raises(Rejected):
            log.compact(0, 99).result(DEADLINE_S)
        assert log.append(0, b"11").result(DEADLINE_S) == 11, "a refused compaction harms nobody"
        assert log.reclaim() >= 0


def test_space_of_compacted_entries_is_given_back(tmp_path: Path) -> None:
    with LocalLog.open("segment", tmp_path / "log", partitions=2, segment_bytes=65_536) as log:
        log.append(1, b"one that stays").result(DEADLINE_S)
        for _ in range(8):
            for future in [log.append(0, bytes(1_000)) for _ in range(60)]:
                last = future.result(DEADLINE_S)
        before = log.status().store.bytes_on_disk
        log.compact(0, last).result(DEADLINE_S)
        assert log.reclaim() > 0
        assert log.status().store.bytes_on_disk < before / 2
        assert log.read(1, 1).result(DEADLINE_S)[0].payload == b"one that stays"


def test_an_answer_that_raises_harms_no_other() -> None:
    def explode(_: int | Exception) -> None:
        raise ZeroDivisionError

    with LocalLog.open("memory", partitions=1) as log:
        log.propose(0, b"one", explode)
        assert log.append(0, b"two").result(DEADLINE_S) == 2
        assert log.status().partitions[0].phase is Phase.SERVING


class BrokenPartition(MemoryStore):
    """Cannot tell where partition 1 stands."""

    def bounds(self, partition: int) -> Bounds:
        if partition == 1:
            raise Damaged("expected a checksum of 7, found 8")
        return super().bounds(partition)


def test_a_partition_that_cannot_be_restored_says_why_and_the_others_serve() -> None:
    log = LocalLog(BrokenPartition(), LogOptions(partitions=3))
    with pytest.raises(PartitionFailed, match=r"partition 1 .*expected a checksum of 7, found 8"):
        log.wait_ready()
    with pytest.raises(PartitionFailed, match="found 8"):
        log.append(1, b"x")
    assert log.append(2, b"x").result(DEADLINE_S) == 1
    assert [status.phase for status in log.status().partitions] == [
        Phase.SERVING,
        Phase.FAILED,
        Phase.SERVING,
    ]
    log.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_another_number_of_partitions_is_refused_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    with LocalLog.open(kind, tmp_path / "log", partitions=4) as log:
        log.append(3, b"x").result(DEADLINE_S)
    for wrong in (3, 8):
        with pytest.raises(Rejected, match=f"expected 4 partitions.*found {wrong}"):
            LocalLog.open(kind, tmp_path / "log", partitions=wrong)
    with LocalLog.open(kind, tmp_path / "log", partitions=4) as log:
        assert log.append(3, b"y").result(DEADLINE_S) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_that_is_not_bytes_is_refused_and_harms_nobody(kind: str, tmp_path: Path) -> None:
    with LocalLog.open(kind, tmp_path / "log", partitions=1) as log:
        for bad in ("text", None, 7):
            with pytest.raises(Rejected, match="expected a payload of bytes, found"):
                log.append(0, bad)  # type: ignore[arg-type]
        assert log.append(0, b"good").result(DEADLINE_S) == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_file_where_the_directory_should_be_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a log")
    with pytest.raises(Rejected, match="expected a directory for the store, found a file"):
        LocalLog.open(kind, tmp_path / "file")


def test_names_keep_their_partition() -> None:
    with LocalLog.open("memory", partitions=64) as log:
        assert log.partition_of("meters/7") == 36
        seen = {log.partition_of(f"topic-{n}") for n in range(2_000)}
        assert seen == set(range(64))


def test_partitions_that_do_not_exist_are_refused() -> None:
    with LocalLog.open("memory", partitions=2) as log:
        for partition in (-1, 2):
            with pytest.raises(Rejected, match="partition from 0 to 1"):
                log.append(partition, b"x")
            with pytest.raises(Rejected, match="partition from 0 to 1"):
                log.read(partition, 1)
    with pytest.raises(Rejected, match="65536 partitions"):
        LogOptions(partitions=0)


def test_the_status_shows_store_schedulers_and_partitions(tmp_path: Path) -> None:
    with LocalLog.open("segment", tmp_path / "log", partitions=2) as log:
        log.append(0, b"x").result(DEADLINE_S)
        status = log.status()
        assert (status.store.kind, status.store.entries, status.wal.refusals) == ("segment", 1, 0)
        assert [p.state.commit_index for p in status.partitions] == [1, 0]
