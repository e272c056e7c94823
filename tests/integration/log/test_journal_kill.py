"""The whole log in a real process, killed by SIGKILL again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.log.store import LogStore
from penstock.log.stores.segment import open_segment
from penstock.testing import seeded, seeds

WRITER = Path(__file__).with_name("journal_writer.py")
PARTITIONS = 4
KILLS = 20


def lines_until_killed(path: Path, life: int, acknowledged: int) -> list[str]:
    """Start a writer, kill it after so many acknowledgements, and return all it gave."""
    source = Path(__file__).parents[3] / "src"
    search = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(source))))
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(life)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": search},
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledged)]
        process.kill()
        lines += process.stdout.readlines()
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


def entries_of(store: LogStore, partition: int) -> list[str]:
    found: list[str] = []
    while batch := store.read(partition, len(found) + 1, max_entries=256, max_bytes=1 << 20):
        assert [entry.index for entry in batch] == [len(found) + 1 + n for n in range(len(batch))]
        found += [entry.payload.decode() for entry in batch]
    return found


@pytest.mark.slow
def test_whatever_a_killed_log_had_acknowledged_is_there_in_order_and_once(tmp_path: Path) -> None:
    acknowledged: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
    total = 0
    for life, seed in enumerate(seeds(KILLS)):
        with seeded(seed) as random:
            lines = lines_until_killed(tmp_path / "log", life, random.randrange(1, 400))
            total += len(lines)
            for line in lines:
                partition, index, payload = line.split(" ")
                assert int(index) not in acknowledged[int(partition)], "an index given twice"
                acknowledged[int(partition)][int(index)] = payload
            store = open_segment(tmp_path / "log", segment_bytes=65_536)
            for partition in range(PARTITIONS):
                found = entries_of(store, partition)
                assert len(found) == len(set(found)), "an entry is there twice"
                for index, payload in acknowledged[partition].items():
                    assert found[index - 1] == payload
            store.close()
    assert total > KILLS
