"""Writes that the disk does by itself, on the disk of this machine."""

from __future__ import annotations

import os
import select
from pathlib import Path
from random import Random

import pytest

from penstock.log.aio import PAGE_BYTES, PIECE_BYTES_MAX, PIECES_MAX, AioWriter, open_direct
from penstock.log.disk import Flight, OsDisk, OsFile

SIZE = 64 * PAGE_BYTES


@pytest.fixture
def file(tmp_path: Path) -> OsFile:
    """A file that can be written past the page cache; not every file system has such."""
    made = OsDisk(tmp_path).create("file", SIZE)
    flight = made.begin_synced(b"", 0)
    if flight is None:
        pytest.skip("the file system of temporary files has no direct IO")
    flight.result()
    return made


def begin(file: OsFile, data: bytes, offset: int) -> Flight:
    flight = file.begin_synced(data, offset)
    assert flight is not None
    return flight


def content(file: OsFile) -> bytes:
    return file.pread(SIZE, 0)


def test_bytes_of_any_length_one_after_the_other_are_what_the_file_holds(file: OsFile) -> None:
    random, expected = Random(1), b""
    while len(expected) < SIZE - 4 * PAGE_BYTES:
        data = random.randbytes(random.choice((1, 200, PAGE_BYTES, random.randrange(9_000))))
        if random.random() < 0.2:
            assert file.pwrite_synced(data, len(expected)) == len(data)
        else:
            assert begin(file, data, len(expected)).result() == len(data)
        expected += data
        assert content(file).rstrip(b"\0") == expected.rstrip(b"\0")


def test_what_lies_behind_becomes_zeros_up_to_the_end_of_the_page_and_no_further(
    file: OsFile,
) -> None:
    file.pwrite(b"x" * (3 * PAGE_BYTES), 0)
    begin(file, b"new", 10).result()
    data = content(file)
    assert data[:13] == b"x" * 10 + b"new"
    assert not any(data[13:PAGE_BYTES])
    assert data[PAGE_BYTES : 3 * PAGE_BYTES] == b"x" * (2 * PAGE_BYTES)


@pytest.mark.parametrize("call", ["pwrite", "pwrite_synced"])
def test_a_call_that_writes_over_a_flight_is_not_undone_by_the_next_flight(
    file: OsFile, call: str
) -> None:
    """As when a group fails, and another one of the same length takes its place."""
    begin(file, b"a" * 100, 0).result()
    assert getattr(file, call)(b"b" * 100, 0) == 100
    begin(file, b"c" * 100, 100).result()
    assert content(file)[:200] == b"b" * 100 + b"c" * 100


def test_several_are_written_at_a_time_and_asked_for_in_any_order(file: OsFile) -> None:
    flights = [begin(file, bytes([65 + n]) * 100, n * PAGE_BYTES) for n in range(PIECES_MAX)]
    assert file.begin_synced(b"one too many", 40 * PAGE_BYTES) is None
    assert [flight.result() for flight in reversed(flights)] == [100] * PIECES_MAX
    assert [content(file)[n * PAGE_BYTES] for n in range(PIECES_MAX)] == [65, 66, 67, 68]
    assert begin(file, b"again", 40 * PAGE_BYTES).result() == 5


def test_the_eventfd_tells_when_one_is_done(file: OsFile) -> None:
    flight = begin(file, b"x" * 100, 0)
    while True:  # it may be told of the write before, too
        assert select.select([flight.done_fd], [], [], 60)[0] == [flight.done_fd]
        assert os.eventfd_read(flight.done_fd) >= 1
        if flight.is_done():
            break
    assert flight.result() == 100


def test_a_large_write_is_written_and_a_larger_one_is_left_to_a_call(tmp_path: Path) -> None:
    file = OsDisk(tmp_path).create("large", 4 * PIECE_BYTES_MAX)
    data = Random(2).randbytes(PIECE_BYTES_MAX - 5)
    flight = file.begin_synced(data, 5)
    if flight is None:
        pytest.skip("the file system of temporary files has no direct IO")
    assert flight.result() == len(data)
    assert file.pread(len(data), 5) == data
    assert file.begin_synced(data + b"x", 5) is None


def test_what_does_not_fit_into_the_pages_of_the_file_is_left_to_a_call(file: OsFile) -> None:
    assert file.begin_synced(b"x", SIZE - PAGE_BYTES) is None
    assert file.begin_synced(b"x" * SIZE, 0) is None


def test_an_error_of_the_kernel_is_raised_and_the_next_write_goes_on(file: OsFile) -> None:
    writer = AioWriter()
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.begin(fd, b"", b"x", 0)
    os.close(fd)
    assert begin(file, b"x" * 10, 0).result() == 10


def test_a_file_system_that_cannot_is_left_to_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/proc/self/status").open("rb") as status, pytest.raises(OSError):
        open_direct(status.fileno())
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(OSError, match="no native asynchronous IO"):
        AioWriter()


def test_a_machine_that_cannot_writes_with_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    file = OsDisk(tmp_path).create("file", SIZE)
    assert file.begin_synced(b"x", 0) is None
    assert file.pwrite_synced(b"x", 0) == 1


def test_files_and_writers_give_back_their_descriptors(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for number in range(20):
        file = OsDisk(tmp_path).create(f"{number}", SIZE)
        flight = file.begin_synced(b"x", 0)
        if flight is not None:
            flight.result()
        del file, flight
    assert descriptors() <= before
