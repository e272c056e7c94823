"""Many writers on one entity of a real server, which may be killed: every increment once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client import AsyncClient, Client, ClientSettings
from penstock.flow.backoff import Backoff
from penstock.protocol.commits import Commit, CommitRead, CommitWrite
from penstock.protocol.errors import CommitConflict, EntityNotFound
from penstock.testing.seeds import seeded, seeds
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import until
from tests.property.commits.naive import MISSING, applied

LIMIT_S = 120.0
SPACE, ENTITY = "home", "counter"


@contextmanager
def serving(directory: Path, **settings: object) -> Iterator[ServerProcess]:
    """A server on a port that it keeps when it is started again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServerProcess(directory, PORT=port, **settings)
    try:
        yield process.start()
    finally:
        process.close()


def settings_of(server: ServerProcess) -> ClientSettings:
    return ClientSettings(
        server.address.url,
        timeout_s=LIMIT_S,
        reconnect=Backoff(base_ms=10, cap_ms=200, jitter=0.5, window_ms=LIMIT_S * 1_000),
    )


@dataclass
class Writers:
    """Tasks that add one to a counter, each as often, and try again after a conflict."""

    settings: ClientSettings
    writers: int
    times: int
    random: Random
    conflicts: int = 0
    seqs: list[int] = field(default_factory=list)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with AsyncClient(self.settings) as client:
            await asyncio.gather(*(self._writer(client, f"w{n}") for n in range(self.writers)))

    async def _writer(self, client: AsyncClient, session: str) -> None:
        for local_seq in range(1, self.times + 1):
            while not await self._add(client, session, local_seq):
                self.conflicts += 1
                await asyncio.sleep(self.random.random() * 0.15)

    async def _add(self, client: AsyncClient, session: str, local_seq: int) -> bool:
        try:
            found = await client.get_entity(SPACE, ENTITY)
            value, basis = found.doc["n"], found.head
        except EntityNotFound as error:
            value, basis = 0, error.detail["head"]
        document = {"n": value + 1, "by": session}
        commit = Commit(
            session=session,
            local_seq=local_seq,
            writes=(CommitWrite(entity=ENTITY, set=document),),
            reads=(CommitRead(entity=ENTITY, seq=basis),),
        )
        try:
            accepted = await client.commit(SPACE, commit)
        except CommitConflict:
            return False
        self.seqs.append(accepted.seq)
        return True


def begin(client: Client) -> None:
    """Make the space, so that there is a head to read at."""
    commit = Commit(session="begin", local_seq=1, writes=(CommitWrite(entity="other", set=0),))
    client.commit(SPACE, commit)


def check_counter(client: Client, total: int, seqs: list[int]) -> None:
    documents_of_others = {"other": 0}
    check = _Linear(total)
    for page in client.read(SPACE):
        for record in page.records:
            check.take(record.seq, record.data)
    assert check.found == sorted(seqs)
    listed = {each.entity: each.doc for each in client.list_entities(SPACE)}
    assert listed == documents_of_others | {ENTITY: check.document}
    state = client.get_entity(SPACE, ENTITY)
    assert (state.doc["n"], state.seq) == (total, check.found[-1])
    middle = client.get_entity(SPACE, ENTITY, at_seq=check.found[total // 2])
    assert middle.doc["n"] == total // 2 + 1
    history = list(client.entity_history(SPACE, ENTITY, page_size=37))
    assert [row.seq for row in history] == check.found


class _Linear:
    """The records of the space, one after another: each commit once, each adds exactly one."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.found: list[int] = []
        self.document: Any = MISSING
        self._numbers: set[tuple[str, int]] = set()

    def take(self, seq: int, data: dict[str, Any]) -> None:
        number = (data["session"], data["local_seq"])
        assert number not in self._numbers, "a commit is there twice"
        self._numbers.add(number)
        for write in data["writes"]:
            if write["entity"] == ENTITY:
                before = 0 if self.document == MISSING else self.document["n"]
                self.document = applied(self.document, write)
                assert self.document["n"] == before + 1, "an increment was lost or doubled"
                self.found.append(seq)


def test_fifty_writers_add_twenty_each_to_one_entity(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(settings_of(server)) as client:
        begin(client)
        writers = Writers(settings_of(server), 50, 20, Random(1))
        writers.run()
        assert writers.conflicts > 0
        check_counter(client, 1_000, writers.seqs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_no_increment_is_lost_or_doubled_when_the_server_is_killed(
    tmp_path: Path, seed: int
) -> None:
    with (
        seeded(seed) as random,
        serving(tmp_path, COMPACT_LOG_BYTES=8_000) as server,  # snapshots all along
        Client(settings_of(server)) as client,
    ):
        begin(client)
        writers = Writers(settings_of(server), 20, 15, random)
        running = threading.Thread(target=writers.run)
        running.start()
        for kill in range(1, 5):
            enough = kill * 300 * 0.2
            until(
                lambda enough=enough: len(writers.seqs) >= enough or not running.is_alive(),
                f"commits before kill {kill}",
                LIMIT_S,
            )
            server.kill()
            server.start()
        running.join(LIMIT_S)
        assert not running.is_alive()
        check_counter(client, 300, writers.seqs)
