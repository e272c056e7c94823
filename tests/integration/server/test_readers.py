"""Spaces, readers and partitions of topics, as a real server tells them over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.events import CaughtUp
from tests.conformance.servers import ServerProcess
from tests.waiting import wait_until


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


def test_a_watch_over_tcp_is_listed_with_its_name_and_its_peer(process: ServerProcess) -> None:
    with started(process) as client:
        client.write("t", [{"n": 1}])
        client.put_router("copy", "t", "u", create_dest=True)
        with client.watch("t", name="prices") as watch:
            next(event for event in watch if isinstance(event, CaughtUp))
            found = client.topic_watchers("t")
        by_kind = {row.kind: row for row in found.watchers}
        assert (found.count, found.routers) == (2, 1)
        sse = by_kind["sse"]
        assert (sse.name, sse.place, sse.behind, sse.state) == ("prices", 1, 0, "ok")
        assert sse.peer == "127.0.0.1"
        assert sse.since is not None
        assert (by_kind["router"].name, by_kind["router"].dest) == ("copy", "u")
        wait_until(lambda: client.topic_watchers("t").count == 1, "the watch to be gone")


def test_a_topic_tells_where_it_is_kept_and_the_sync_that_made_it_durable(
    process: ServerProcess,
) -> None:
    with started(process) as client:
        client.put_topic("t", durability="fsync")
        client.write("t", [{"n": 1}])
        found = client.topic_partition("t")
        assert (found.topic, found.phase, found.log_queue) == ("t", "serving", 0)
        assert 0 <= found.partition < found.partitions
        assert found.topics >= 1
        assert found.log_index >= 1
        assert found.last_group is not None
        assert found.last_group.operations >= 1
