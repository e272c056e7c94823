"""The journal on a disk that fails: clear errors, reads go on, nothing acknowledged is lost."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from penstock.log.store import DiskFull, ReadOnly, Starved, SyncFailed
from penstock.log.stores.segment.store import SegmentOptions, SegmentStore
from penstock.testing import seeded, seeds
from penstock.testing.disk import FakeDisk, FakeFile, InlineExecutor, PowerLoss
from tests.unit.log.journals import Answer, LoopJournal

PARTITIONS = 2


def open_log(disk: FakeDisk) -> LoopJournal:
    disk.begins = False
    options = SegmentOptions(
        segment_bytes=16_384, background=InlineExecutor(), entropy=lambda count: b"\7" * count
    )
    return LoopJournal(SegmentStore(disk, options), PARTITIONS)


def test_a_sync_error_ends_writing_with_a_clear_error_and_reads_go_on() -> None:
    disk = FakeDisk(Random(1))
    log = open_log(disk)
    for number in range(5):
        log.append(0, b"%d" % number)
    disk.sync_error_after = 0
    with pytest.raises(SyncFailed, match=r"sync of .* failed.* may or may not be durable"):
        log.append(0, b"unknown")
    for _ in range(3):
        with pytest.raises(ReadOnly, match=r"takes no more writes: sync of .* failed"):
            log.append(0, b"refused")
    assert log.payloads(0) == [b"0", b"1", b"2", b"3", b"4"]
    assert "sync of" in (log.store.status().read_only_reason or "")
    log.close()
    disk.sync_error_after = None
    again = open_log(disk.after_power_loss(Random(2)))
    found = again.payloads(0)
    assert found in ([b"0", b"1", b"2", b"3", b"4"], [b"0", b"1", b"2", b"3", b"4", b"unknown"])
    again.append(0, b"5")
    assert len(again.payloads(0)) == len(found) + 1
    again.close()


def test_a_full_disk_refuses_writes_until_there_is_space_and_then_goes_on_by_itself() -> None:
    disk = FakeDisk(Random(1))
    log = open_log(disk)
    disk.space_bytes = 0
    count, refused = 0, 0
    while not refused:
        try:
            log.append(0, b"%04d" % count * 100)
            count += 1
        except DiskFull:
            refused += 1
    with pytest.raises(DiskFull, match="no space left"):
        log.append(1, b"neither here")
    assert len(log.payloads(0)) == count
    disk.space_bytes = None
    log.append(0, b"after")
    assert len(log.payloads(0)) == count + 1
    log.append(1, b"after")
    assert len(log.payloads(1)) == 1
    log.close()
    again = open_log(disk.after_kill())
    assert len(again.payloads(0)) == count + 1
    again.close()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_group_that_found_no_space_is_unknown_only_if_all_of_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    disk = FakeDisk(Random(1))
    log = open_log(disk)
    log.append(0, b"before")
    pwrite = FakeFile.pwrite

    def full(self: FakeFile, data: bytes, offset: int) -> int:
        pwrite(self, data if is_whole else data[:-1], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FakeFile, "pwrite", full)
        with pytest.raises(SyncFailed if is_whole else DiskFull, match="no space left"):
            log.append(0, b"refused")
    assert log.payloads(0) == [b"before"]
    left = open_log(disk.after_kill())
    assert left.payloads(0) == [b"before", *([b"refused"] if is_whole else [])]
    left.close()
    log.append(0, b"after")
    assert log.payloads(0) == [b"before", b"after"], "it goes on by itself"
    log.close()


@pytest.mark.parametrize("seed", seeds(25))
def test_whatever_was_acknowledged_is_there_after_a_power_loss(seed: int) -> None:
    with seeded(seed) as random:
        disk = FakeDisk(random)
        log = open_log(disk)
        disk.lose_power_after = random.randrange(1, 400)
        sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        asked: list[tuple[int, bool, int, Answer]] = []
        for number in range(400):
            partition, sync = random.randrange(PARTITIONS), random.random() < 0.7
            payload = b"%d" % number * random.randrange(60)
            answer = log.submit(partition, payload, sync=sync)
            sent[partition].append(payload)
            asked.append((partition, sync, len(sent[partition]), answer))
            if random.random() < 0.3:
                with suppress(Exception):
                    log.wait(answer)
                if answer.exception() is not None:
                    break
        with suppress(PowerLoss):
            log.close()
        again = open_log(disk.after_power_loss(random))
        for partition in range(PARTITIONS):
            found = again.payloads(partition)
            assert found == sent[partition][: len(found)], "a prefix of what was sent, in order"
            synced = [
                index
                for number, sync, index, answer in asked
                if answer.exception() is None and number == partition and sync
            ]
            assert len(found) >= max(synced, default=0), "every acknowledged synced entry is there"
        again.close()


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_without_means_for_a_file_refuses_writes_until_it_has_some(reason: int) -> None:
    disk = FakeDisk(Random(1))
    log = open_log(disk)
    written = 0
    disk.create_error = reason
    with suppress(Starved):
        for _ in range(100):  # until the next segment is wanted
            log.append(0, b"x" * 1_000)
            written += 1
    with pytest.raises(Starved, match="no means left"):
        log.append(0, b"x" * 1_000)  # a smaller one might still have room
    assert "no means left" in (log.store.status().read_only_reason or "")
    disk.create_error = None
    log.append(0, b"and on")
    assert len(log.payloads(0)) == written + 1
    assert log.store.status().read_only_reason is None
    log.close()
    again = open_log(disk.after_power_loss(Random(2)))
    assert again.payloads(0) == [b"x" * 1_000] * written + [b"and on"]
    again.close()
