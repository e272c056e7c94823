"""The memory of a server that is written more than it may hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.kernel.units import KIB, MIB
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api, at, payloads, records
from tests.waiting import wait_until

LIMIT = 8 * MIB


def resident(server: ServerProcess) -> int:
    """The bytes of memory that a server has."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("size", "count"), [(100, 4_000), (10_000, 60), (500_000, 1)])
def test_memory_stays_flat_while_many_times_its_limit_is_written(
    tmp_path: Path, size: int, count: int
) -> None:
    server = ServerProcess(tmp_path, MAX_HOT_BYTES=LIMIT, COMPACT_LOG_BYTES=32 * MIB)
    try:
        api = Api(server.start().address)
        record = "x" * (size - 2)
        written = 0

        body = records(*[record] * count)

        def is_taken() -> bool:
            """Whether the batch was written, rather than refused until the disk has caught up."""
            answer = api.post(at(f"t{written % 3}"), body)
            assert answer.status in (200, 201, 429), str(answer)
            return answer.status != 429

        def grow_to(total: int) -> int:
            nonlocal written
            while written < total:
                wait_until(is_taken, "the disk to catch up")
                written += size * count
            return resident(server)

        first = grow_to(3 * LIMIT)
        most = max(grow_to(times * LIMIT) for times in range(4, 11))
        # Without the limit it grows by seven times this, and more.
        assert most - first < 2 * LIMIT
        numbers = dict(
            line.split()
            for line in api.get("/v0/metrics").body.decode().splitlines()
            if line.startswith(("topics_hot_bytes", "topics_spilled_bytes"))
        )
        assert int(numbers["topics_hot_bytes_limit"]) == LIMIT
        assert int(numbers["topics_hot_bytes"]) <= LIMIT + LIMIT // 4 + 4 * MIB
        assert int(numbers["topics_spilled_bytes_total"]) > LIMIT
        page = api.diff("t0", limit=3)
        assert payloads(page)[0] == record
    finally:
        server.discard()


def test_the_limit_is_a_quarter_of_the_machine_at_most(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        api = Api(server.start().address)
        limit = api.get("/v0/scheduler").json["storage"]["hot_bytes_limit"]
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert 64 * KIB < limit <= min(256 * MIB, machine // 4)
    finally:
        server.discard()
