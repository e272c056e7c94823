"""Snapshots on the way: a node that the log can no longer bring up to date gets a snapshot."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.cluster.processes import Process, Processes, cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

SMALL = {
    "PENSTOCK_COMPACT_LOG_BYTES": "64 KiB",
    "PENSTOCK_LOG_SEGMENT_BYTES": "64 KiB",
    "PENSTOCK_SEGMENT_MAX_EVENTS": "50",
    "PENSTOCK_SEGMENT_MAX_AGE_MS": "1000",
    "PENSTOCK_HOT_RETAIN_SEGMENTS": "1",
}
"""Snapshots and cold segments after a few records."""
TEXT = "x" * 1_000


def fill(node: Process, topic: str, numbers: range) -> list[str]:
    values = [f"{number} {TEXT}" for number in numbers]
    for start in range(0, len(values), 20):
        reply = node.write(topic, *values[start : start + 20])
        assert reply.status in (200, 201), reply
    return values


def snapshot_index(node: Process, partition: int = 0) -> int:
    return int(node.view()["partitions"][partition]["snapshot"])


def boundary_passed(node: Process, topic: str, values: list[str], index: int) -> list[str]:
    """Write until the log's start has moved past an index: two snapshots after it."""
    made: list[str] = list(values)
    seen = [snapshot_index(node)]

    def moved() -> bool:
        made.extend(fill(node, topic, range(len(made), len(made) + 40)))
        now = snapshot_index(node)
        if now != seen[-1]:
            seen.append(now)
        return len(seen) > 3 and seen[-2] > index

    wait_until(moved, "the log to be freed")
    return made


def test_a_node_that_joins_late_gets_a_snapshot_and_cold_segments(tmp_path: Path) -> None:
    made = Processes(tmp_path, partitions=1, environ=SMALL)
    try:
        first = made.found("a")
        values = boundary_passed(first, "t", [], 0)
        had: list[int] = []

        def leave_half(node: Process) -> None:
            """Half of a segment, as a transfer that broke leaves it."""
            whole = sorted((first.directory / "cold").glob("*.segment"))[0]
            half = whole.read_bytes()[: whole.stat().st_size // 2]
            (node.directory / "cold").mkdir()
            (node.directory / "cold" / f"{whole.name}.arriving").write_bytes(half)
            had.append(len(half))

        second = made.add("b", first, leave_half)
        assert second.values("t") == values
        assert snapshot_index(second) > 0
        came = second.view()["snapshots"]
        files = list((second.directory / "cold").glob("*.segment"))
        files += (second.directory / "snapshots").glob("*.snapshot")
        assert len(files) > 1
        if came["taken"] == 1:  # the log may be freed once more while the first one is read in
            assert came["bytes_taken"] == sum(each.stat().st_size for each in files) - had[0]
        assert not list((second.directory / "cold").glob("*.arriving"))
        leader = made.leader_of(0)
        values += fill(leader, "t", range(len(values), len(values) + 20))
        wait_until(lambda: second.values("t") == values, "what came after the snapshot")
        second.kill()
        second.start()
        wait_until(lambda: second.values("t") == values, "the same after a restart")
    finally:
        made.close()


def test_a_node_that_was_away_for_long_comes_back_by_snapshot(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1, environ=SMALL) as made:
        leader = made.leader_of(0)
        values = fill(leader, "t", range(20))
        away = made.others(leader.name)[0]
        last = int(away.view()["partitions"][0]["last"])
        away.kill()
        values = boundary_passed(leader, "t", values, last)
        away.start()
        wait_until(lambda: away.values("t") == values, "all records on the node that was away")
        # It counts again: with the third node gone a write needs it.
        third = made.others(leader.name, away.name)[0]
        third.signal(signal.SIGSTOP)
        values += fill(leader, "t", range(len(values), len(values) + 20))
        third.signal(signal.SIGCONT)
        wait_until(lambda: away.values("t") == values, "what came after the snapshot")
