"""Small files are merged beside a writer, by a process of its own. No Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.flow.backoff import Backoff
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.compact import CompactionPolicy
from penstock.lake.expire import SNAPSHOTS_KEPT_MS
from penstock.spark.pipeline import upkeep as module
from penstock.spark.pipeline.upkeep import Upkeep, forget, tidy
from penstock.tables.store import TableStore
from penstock.testing import ManualClock
from tests.integration.lake.duck import Duck
from tests.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def make(lake: Catalog, name: str = "t") -> None:
    change = lake.begin()
    change.create_table(lake.schema("main"), name, SCHEMA)
    lake.commit(change)


def add(lake: Catalog, number: int, name: str = "t") -> int:
    """One small file, as a batch leaves it; the snapshot that has it."""
    table = lake.table(name)
    rows = pa.table({"n": [number] * 10, "text": [f"row {number}"] * 10}, schema=SCHEMA)
    change = lake.begin(reserve_ms=60_000)
    change.add_files(table, [lake.write(table, rows, token=change.token)])
    made = lake.commit(change).snapshot
    assert made is not None
    return made.id


def files(lake: Catalog) -> int:
    return len(lake.table_at("t").files)


def test_many_small_files_become_few_and_no_snapshot_changes(lake: Catalog, duck: Duck) -> None:
    make(lake)
    seen = [add(lake, number) for number in range(50)]
    while tidy(lake, ["t"]):
        pass
    assert files(lake) < 16
    assert duck.rows("SELECT count(*) AS c, sum(n) AS s FROM t") == [{"c": 500, "s": 12_250}]
    assert lake.scan("t", seen[9]).num_rows == 100
    assert not tidy(lake, ["t"]), "what was merged is not merged again"


def test_what_was_merged_is_written_again_only_with_files_of_its_own_size(lake: Catalog) -> None:
    make(lake)
    small = CompactionPolicy(small_bytes=2_000, target_bytes=1 << 20, files_min=4)
    large = CompactionPolicy(
        least_bytes=2_000, small_bytes=1 << 20, target_bytes=1 << 20, files_min=3
    )
    tiers = [small, large]
    merged = []
    for number in range(120):
        add(lake, number)
        merged.append(tidy(lake, ["t"], tiers=tiers))
    assert sum(merged) < 3 * 120, "each file is merged into a tier, and once more into the next"
    assert files(lake) < 12
    assert lake.scan("t").num_rows == 1_200


def test_old_snapshots_of_an_ingest_only_lake_expire_and_no_rows(
    lake: Catalog, address: str, duck: Duck
) -> None:
    make(lake)
    seen = [add(lake, number) for number in range(5)]
    assert forget(lake, None) == 0, "a day is not over"
    assert forget(lake, 0) == 0, "0 keeps all"
    clock = ManualClock(now_ms=lake.clock.now_ms() + 2 * SNAPSHOTS_KEPT_MS)
    before = len(lake.snapshots())
    with open_catalog(address, lake.data_path, clock=clock) as later:
        assert forget(later, 3 * SNAPSHOTS_KEPT_MS) == 0
        assert forget(later, None) == before - 1
    assert [each.id for each in lake.snapshots()] == [seen[-1]]
    assert duck.value("SELECT count(*) FROM t") == 50


def test_a_lake_of_stream_tables_is_left_to_its_coordinator(lake: Catalog) -> None:
    make(lake)
    TableStore(lake)
    add(lake, 1)
    assert forget(lake, 1) == 0
    assert len(lake.snapshots()) > 1


def test_a_commit_merges_no_more_files_than_it_may(lake: Catalog) -> None:
    make(lake)
    for number in range(20):
        add(lake, number)
    few = CompactionPolicy(small_bytes=1 << 20, target_bytes=1 << 20, files_min=4, files_max=6)
    assert tidy(lake, ["t"], tiers=[few]) == 6
    assert files(lake) == 15


def test_its_process_merges_while_files_come_and_ends_with_its_block(
    lake: Catalog, address: str, duck: Duck
) -> None:
    with Upkeep(address, lake.data_path, ["t", "not_there_yet"]) as upkeep:
        make(lake)
        count = 0

        def is_merged() -> bool:
            nonlocal count
            add(lake, count)
            count += 1
            return count > 60 and files(lake) < count // 3

        wait_until(is_merged, "fewer files than batches", patience_s=120)
        pid = upkeep.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
        group = Path(f"/proc/{pid}/autogroup")  # where the kernel groups sessions
        assert not group.exists() or group.read_text().endswith(" nice 10\n")
    assert not Path(f"/proc/{pid}").exists()
    assert duck.rows("SELECT count(*) AS c FROM t") == [{"c": 10 * count}]


def test_its_process_is_begun_again_when_it_is_killed_and_that_is_told_once(
    lake: Catalog, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PAUSES", Backoff(200, 200, 0.0, float("inf")))
    make(lake)
    for number in range(20):
        add(lake, number)
    with Upkeep(address, lake.data_path, ["t"]) as upkeep:
        for _ in range(3):
            pid = upkeep.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: upkeep.pid != pid, "another process")
        assert upkeep.trouble == "small files are not merged: that process ended with -9"
        wait_until(lambda: files(lake) < 16, "merged files")
        last = upkeep.pid
    assert not Path(f"/proc/{last}").exists()
    told = [record.getMessage() for record in caplog.records if "not merged" in record.getMessage()]
    assert len(told) == 1


def test_its_process_is_well_again_after_a_while(
    lake: Catalog, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_S", 0.2)
    make(lake)
    with Upkeep(address, lake.data_path, ["t"]) as upkeep:
        upkeep.trouble = "it ended"
        wait_until(lambda: upkeep.trouble is None, "no trouble")


def test_its_process_ends_when_the_one_that_started_it_is_killed(
    lake: Catalog, address: str
) -> None:
    program = (
        "import sys, time\n"
        "from penstock.spark.pipeline.upkeep import Upkeep\n"
        "with Upkeep(sys.argv[1], None, ['t']) as upkeep:\n"
        "    print(upkeep.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        os.kill(started.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its end", patience_s=60)
