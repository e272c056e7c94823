"""Both faces of the client on the entities of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import AsyncClient, Client
from penstock.protocol.commits import Commit, CommitRead, CommitWrite, Precondition
from penstock.protocol.errors import (
    CommitConflict,
    CommitProtocol,
    EntityNotFound,
    InvalidRequest,
    IsASpace,
    NotASpace,
    PastGone,
    PreconditionFailed,
)
from tests.conformance.servers import ServerProcess


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("server")
    process = ServerProcess(directory)
    try:
        yield process.start().address.url
    finally:
        process.close()


def commit(number: int, *writes: CommitWrite, **fields: object) -> Commit:
    return Commit("s", number, writes, **fields)  # type: ignore[arg-type]


def test_the_blocking_client_commits_looks_and_pages(url: str) -> None:
    with Client(url) as client:
        writes = [CommitWrite(f"e{number}", set=number) for number in range(7)]
        first = client.commit("blocking", commit(1, *writes))
        again = client.commit("blocking", commit(1, *writes))
        assert (first.seq, first.replayed, again.seq, again.replayed) == (1, False, 1, True)
        for number in range(2, 7):
            client.commit("blocking", commit(number, CommitWrite("e0", patch={"n": number})))
        listed = list(client.list_entities("blocking", page_size=3))
        assert [row.entity for row in listed] == [f"e{number}" for number in range(7)]
        assert {row.head for row in listed} == {6}
        assert [row.doc for row in client.list_entities("blocking", "e0", at_seq=1)] == [0]
        history = client.entity_history("blocking", "e0", after_seq=1, page_size=2)
        assert [(row.seq, row.writes[0].patch) for row in history] == [
            (number, {"n": number}) for number in range(2, 7)
        ]
        state = client.get_entity("blocking", "e0", at_seq=3)
        assert (state.doc, state.seq, state.head) == ({"n": 3}, 3, 3)


def test_the_async_client_commits_looks_and_pages(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            for number in range(1, 6):
                await client.commit("async", commit(number, CommitWrite(f"e{number}", set=number)))
            listed = [row.doc async for row in client.list_entities("async", page_size=2)]
            assert listed == [1, 2, 3, 4, 5]
            history = [row async for row in client.entity_history("async", "e3")]
            assert [row.seq for row in history] == [3]
            assert (await client.get_entity("async", "e3")).head == 5

    asyncio.run(main())


def test_refusals_are_told_by_their_kind(url: str) -> None:
    with Client(url) as client:
        client.commit("kinds", commit(1, CommitWrite("e", set=1), event_id="ev"))
        with pytest.raises(CommitConflict) as conflict:
            client.commit("kinds", commit(2, CommitWrite("e", set=2), reads=(CommitRead("e", 0),)))
        assert conflict.value.detail == {"entity": "e", "basis": 0, "current": 1, "kind": "read"}
        once = (Precondition(receipt_absent="ev"),)
        with pytest.raises(PreconditionFailed) as failed:
            client.commit("kinds", commit(2, CommitWrite("e", set=2), preconditions=once))
        assert failed.value.detail["reason"] == "receipt-exists"
        with pytest.raises(CommitProtocol):
            client.commit("kinds", commit(1, CommitWrite("e", set=2)))
        with pytest.raises(InvalidRequest, match="has 0 of set, patch and delete"):
            client.commit("kinds", commit(2, CommitWrite("e")))
        with pytest.raises(InvalidRequest, match="cannot be encoded as JSON"):
            client.commit("kinds", commit(2, CommitWrite("e", set=object())))
        with pytest.raises(EntityNotFound) as missing:
            client.get_entity("kinds", "none")
        assert missing.value.detail["head"] == 1
        with pytest.raises(IsASpace):
            client.write("kinds", [1])
        client.write("plain", [1])
        with pytest.raises(NotASpace):
            client.get_entity("plain", "e")
        client.commit("kinds", commit(2, CommitWrite("e", patch={"a": 1})))
        client.commit("kinds", commit(3, CommitWrite("e", patch={"b": 1})))
        client.delete_records("kinds", before_seq=3)
        with pytest.raises(PastGone):
            client.get_entity("kinds", "e", at_seq=2)
