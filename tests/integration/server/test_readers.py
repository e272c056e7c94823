"""Spaces, readers and partitions of topics, as a real server tells them over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.protocol.commits import Commit, CommitWrite
from tests.conformance.servers import ServerProcess


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    try:
        yield process
    finally:
        process.close()


def started(process: ServerProcess) -> Client:
    address = process.start().address
    return Client(f"http://{address.host}:{address.port}")


def commit(client: Client, space: str, number: int, *writes: CommitWrite) -> int:
    return client.commit(space, Commit(session="s", local_seq=number, writes=writes)).ts


def test_the_list_of_spaces_is_the_same_after_a_restart(process: ServerProcess) -> None:
    with started(process) as client:
        for space in ("a", "b", "c"):
            commit(client, space, 1, *(CommitWrite(entity=str(n), set={}) for n in range(5)))
        last_ms = commit(client, "b", 2, CommitWrite(entity="3", delete=True))
        rows = list(client.list_spaces(page_size=2))
        assert [(row.space, row.entities, row.seq) for row in rows] == [
            ("a", 5, 1), ("b", 4, 2), ("c", 5, 1),
        ]  # fmt: skip
        assert rows[1].last_commit == last_ms
        assert [row.space for row in client.list_spaces("b")] == ["b"]
    process.terminate()
    process.wait()
    with started(process) as client:
        assert list(client.list_spaces()) == rows
