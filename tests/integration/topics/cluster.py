"""Engines of one process as a cluster: letters go from loop turn to loop turn, and can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

from penstock.log.store import LogStore
from penstock.log.stores import open_store
from penstock.log.stores.memory import MemoryStore
from penstock.raft.journal import GroupOptions
from penstock.raft.members import Members
from penstock.raft.messages import InstallSnapshot
from penstock.raft.progress import Limits
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from tests.waiting import until

QUICK = Limits(election_ticks_min=10, election_ticks_max=20)


class Loopback:
    """The links of one engine to the others."""

    def __init__(self, cluster: Cluster, member: int) -> None:
        self._cluster = cluster
        self._member = member

    def flush(self) -> None:
        """Nothing waits here."""

    def send(self, member: int, letter: bytes, *, is_droppable: bool) -> None:
        self._cluster.sent += 1
        asyncio.get_running_loop().call_soon(self._cluster.deliver, self._member, member, letter)

    def send_snapshot(self, partition: int, message: InstallSnapshot) -> None:
        task = asyncio.ensure_future(self._cluster.copy(self._member, partition, message))
        self._cluster.tasks.add(task)
        task.add_done_callback(self._cluster.tasks.discard)


class Cluster:
    """Engines by member id, and the pairs between which nothing passes."""

    def __init__(self, directory: Path | None, options: dict[str, Any]) -> None:
        self.directory = directory
        self.options = options
        self.engines: dict[int, Engine] = {}
        self.stores: dict[int, LogStore] = {}
        self.cut: set[tuple[int, int]] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.letters = self.sent = 0
        self.snapshots = 0

    async def start(self, member: int, founders: tuple[int, ...]) -> Engine:
        options = self.options
        if self.directory is None:
            store: LogStore = self.stores.get(member) or MemoryStore()
        else:
            options = options | {"data_dir": self.directory / str(member)}
            store = open_store("segment", options["data_dir"] / "log", segment_bytes=1 << 20)
        self.stores[member] = store
        group = GroupOptions(member=member, founders=Members(founders), limits=QUICK, tick_ms=5)
        engine = Engine(store, EngineOptions(group=group, **options))
        engine.journal.connect(Loopback(self, member))
        await engine.open()
        self.engines[member] = engine
        return engine

    async def kill(self, member: int) -> None:
        """End an engine without a goodbye; what its store has stays."""
        engine = self.engines.pop(member)
        engine.turns.stop()
        engine.passing.stop()
        engine.journal.stop_timed_syncs()
        if engine.snapshotter is not None:
            engine.snapshotter.stop()
        engine.hot.close()
        await engine.journal.stop()
        if self.directory is not None:
            self.stores.pop(member).close()

    def deliver(self, sender: int, member: int, letter: bytes) -> None:
        engine = self.engines.get(member)
        if engine is not None and sender in self.engines and (sender, member) not in self.cut:
            self.letters += 1
            engine.journal.receive(sender, letter)

    async def copy(self, sender: int, partition: int, message: InstallSnapshot) -> None:
        """Bring a snapshot and the cold segments that it names to another engine."""
        source, target = self.engines[sender], self.engines.get(message.to)
        is_there = target is not None and (sender, message.to) not in self.cut
        if is_there:
            assert target is not None
            assert source.snapshots is not None
            assert target.snapshots is not None
            found = source.snapshots.found(partition)
            snapshot = next(each for each in found if each.index == message.mark.index)
            assert source.cold_files is not None
            assert target.cold_files is not None
            target.cold_files.path.mkdir(exist_ok=True)
            for path in source.cold_files.path.glob("*.segment"):
                copyfile(path, target.cold_files.path / path.name)
            copyfile(snapshot.path, target.snapshots.incoming(partition, message.mark.index))
            await target.install_snapshot(partition, message)
            self.snapshots += 1
        if sender in self.engines:
            source.journal.snapshot_sent(partition, message.to, is_there)

    def leader(self, partition: int = 0) -> Engine | None:
        return next((e for e in self.engines.values() if e.journal.serves(partition)), None)

    async def led(self, partition: int = 0) -> Engine:
        await until(lambda: self.leader(partition) is not None, "a leader")
        engine = self.leader(partition)
        assert engine is not None
        return engine

    async def all_led(self) -> None:
        await until(lambda: all(map(self.leader, range(self.options["partitions"]))), "leaders")

    async def applied(self) -> None:
        """Wait until all engines have applied the same."""
        engines = list(self.engines.values())

        def ends(of: Callable[[Any], int]) -> bool:
            return all(len({of(e.journal.groups[n].core) for e in engines}) == 1 for n in numbers)

        numbers = range(self.options["partitions"])
        await until(lambda: ends(lambda core: core.applied), "the same is applied")

    async def equal(self) -> None:
        """Wait until all engines have applied the same, and compare their states."""
        await self.applied()
        for number in range(self.options["partitions"]):
            states = [list(e.writers)[number].partition.state() for e in self.engines.values()]
            assert all(state == states[0] for state in states[1:])


@asynccontextmanager
async def cluster_of(
    members: int = 3, directory: Path | None = None, **options: Any
) -> AsyncIterator[Cluster]:
    """A cluster whose partitions are all led."""
    cluster = Cluster(directory, {"partitions": 2} | options)
    everyone = tuple(range(1, members + 1))
    try:
        for member in everyone:
            await cluster.start(member, everyone)
        await cluster.all_led()
        yield cluster
    finally:
        for member, engine in list(cluster.engines.items()):
            await engine.close()
            if directory is not None:
                cluster.stores[member].close()
