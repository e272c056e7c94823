"""A real disk without room: writes are refused clearly, reads go on, nothing answered is lost."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import expect
from tests.conformance.servers import ServerProcess
from tests.conformance.sockets import Socket
from tests.conformance.wire import Answer, Api, at, until

DISK_MIB = 6
DATUM = "x" * 40_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, a few megabytes large; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if not made or made.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def server(small_disk: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(
        small_disk, LOG_SEGMENT_BYTES=1_048_576, COMPACT_LOG_BYTES=500_000_000, LOG="off"
    )
    try:
        yield process
    finally:
        process.discard()


def fill(api: Api, topic: str, first: int) -> tuple[list[int], Answer]:
    """Write until a write is refused; what was answered, and the refusal."""
    written: list[int] = []
    for number in range(first, first + 1_000):
        answer = api.post(at(topic), {"records": [{"data": [number, DATUM]}]})
        if answer.status not in (200, 201):
            return written, answer
        written.append(number)
    raise AssertionError(f"{len(written)} writes fit on a disk of {DISK_MIB} MiB")


def numbers(api: Api, topic: str) -> list[int]:
    """Everything in a topic."""
    found: list[int] = []
    from_seq, caught_up = 0, False
    while not caught_up:
        page = api.diff(topic, from_seq, limit=1_000)
        found += [record["data"][0] for record in page["records"]]
        from_seq, caught_up = page["next_from_seq"], page["caught_up"]
    return found


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_full_disk_refuses_writes_until_there_is_room(small_disk, server, durability):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1_048_576))
    api = Api(server.start().address)
    api.make("t", durability=durability)
    written, refusal = fill(api, "t", 0)
    assert written, "nothing fitted at all"
    detail = expect.refusal(refusal, 429, "throttled")
    assert detail == {"limit": "disk", "retry_after_ms": 1_000}
    error = refusal.json["error"]
    assert "room" in error["message"] or "space" in error["message"], error
    # Reads, probes and other topics' reads go on; what was refused is nowhere.
    assert api.get("/healthz").status == 200
    assert numbers(api, "t") == written
    assert api.state("t")["head_seq"] == len(written)
    again, _ = fill(api, "t", 10_000)
    assert numbers(api, "t") == [*written, *again]
    written += again

    ballast.unlink()

    def taken() -> bool:
        return api.post(at("t"), {"records": [{"data": [20_000, ""]}]}).status == 200

    until(taken, "a write after there is room again")
    written.append(20_000)
    assert numbers(api, "t") == written
    server.kill()
    api = Api(server.start().address)
    assert numbers(api, "t") == written
    assert api.write("t", [20_001, ""])["head_seq"] == len(written) + 1


def test_a_server_killed_on_a_full_disk_starts_again(small_disk, server):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1_048_576))
    api = Api(server.start().address)
    api.make("t", durability="fsync")
    written, _ = fill(api, "t", 0)
    server.kill()
    ballast.unlink()
    api = Api(server.start().address)
    assert numbers(api, "t") == written
    api.write("t", [30_000, ""])
    assert numbers(api, "t") == [*written, 30_000]


def test_a_full_disk_is_told_by_the_probe_in_a_few_lines_and_without_paths(tmp_path, small_disk):
    log = tmp_path / "server.log"  # not on the disk that is full
    server = ServerProcess(
        tmp_path,
        DATA_DIR=small_disk / "data",
        LOG_SEGMENT_BYTES=1_048_576,
        COMPACT_LOG_BYTES=500_000_000,
    )
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1_048_576))
    try:
        api = Api(server.start().address)
        api.make("t", durability="fsync")
        assert api.get("/readyz").status == 200
        _, refusal = fill(api, "t", 0)
        began_s = time.monotonic()
        lines_before = len(log.read_text().splitlines())
        for number in range(100):
            again = api.post(at("t"), {"records": [{"data": [number, DATUM]}]})
            assert again.status == refusal.status
        spent_s = time.monotonic() - began_s
        lines = log.read_text().splitlines()[lines_before:]
        assert len(lines) <= spent_s + 2, lines
        ready = api.get("/readyz")
        expect.refusal(ready, 503, "not_ready")
        assert "space" in ready.json["error"]["detail"]["reason"]
        with Socket(api.address) as socket:
            failed = socket.ask("publish", "error", topic="t", records=[{"data": DATUM}])
        for text in (str(refusal), str(ready), str(failed)):
            assert str(small_disk) not in text, text
            assert "space" in text
        assert api.get("/healthz").status == 200
        ballast.unlink()
        # Ready by itself: whoever sends no writes while it is not would wait for ever.
        until(lambda: api.get("/readyz").status == 200, "room is noticed without a write")
        api.write("t", [20_000, ""])
    finally:
        server.discard()
