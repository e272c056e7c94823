"""The load of the soaks: it knows what became of each request, and so does the check afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.processes import Process
from tests.soak.presses import take_in
from tests.soak.pressing import ACKNOWLEDGED, REFUSED, Pressing

LIMIT_BYTES = 20_000


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, "a", {"PENSTOCK_MAX_TOTAL_BYTES": str(LIMIT_BYTES)})
    process.peer_listen = ""
    process.start()
    yield process
    process.kill()


def pressed(node: Process, path: Path, **facts: object) -> tuple[dict[str, object], bytes]:
    """What a short load found, and what it knows of each of its requests."""
    wanted = {
        "urls": [f"127.0.0.1:{node.port}"], "topics": ["t"], "name": "p", "path": str(path),
        "connections": 2, "window": 0, "rate": 500.0, "seconds": 0.5, "record_bytes": 10, **facts,
    }  # fmt: skip
    return Pressing(wanted).run(), path.read_bytes()


def seen(node: Process, count: int) -> tuple[bytearray, Counter[str]]:
    counts: Counter[str] = Counter()
    found = {"p": bytearray(count)}
    take_in(node, "t", found, counts)
    return found["p"], counts


def test_what_is_due_is_sent_whatever_is_under_way_and_is_there_once(
    alone: Process, tmp_path: Path
) -> None:
    found, states = pressed(alone, tmp_path / "states")
    assert found["offered"] == found["sent"] == len(states) > 50
    assert found["acknowledged"] == states.count(ACKNOWLEDGED) == len(states)
    there, counts = seen(alone, len(states))
    assert there.count(1) == len(states)
    assert not counts["twice"]


def test_without_a_rate_each_connection_has_so_many_under_way(
    alone: Process, tmp_path: Path
) -> None:
    _, states = pressed(alone, tmp_path / "states", rate=0.0, window=3)
    assert states.count(ACKNOWLEDGED) + states.count(REFUSED) == len(states)
    assert states.count(ACKNOWLEDGED) > 6


def test_what_a_node_lacks_and_what_it_has_twice_is_seen(alone: Process, tmp_path: Path) -> None:
    _, states = pressed(alone, tmp_path / "states", seconds=0.2)
    alone.write("t", "p:0000000001:", "p:0000000001:")
    there, counts = seen(alone, len(states) + 1)
    assert counts["twice"] == 2
    assert there[-1] == 0


def test_a_refusal_is_counted_by_its_code_and_nothing_of_it_is_there(
    alone: Process, tmp_path: Path
) -> None:
    found, states = pressed(alone, tmp_path / "states", record_bytes=1_000)
    assert found["outcomes"] == {"429 throttled": found["refused"]}
    refused = states.count(REFUSED)
    assert refused == found["refused"] == len(states) - states.count(ACKNOWLEDGED) > 0
    there, _ = seen(alone, len(states))
    assert there.count(1) == states.count(ACKNOWLEDGED) <= LIMIT_BYTES // 1_000
    assert not any(there[n] for n, state in enumerate(states) if state == REFUSED)
