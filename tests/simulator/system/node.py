"""One node of the simulated system: everything but the network, the clock, the disk and the loop is
what a server runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.kernel.clock import SteadyClock
from penstock.kernel.errors import PenstockError
from penstock.log.executor import WorkKind
from penstock.log.store import Compact
from penstock.log.stores.segment.store import SegmentOptions, SegmentStore
from penstock.raft.journal import FIRST_READ_MAX, GroupOptions, ReplicatedJournal, Start
from penstock.raft.members import Members
from penstock.raft.messages import InstallSnapshot
from penstock.testing import FakeDisk
from penstock.testing.disk import InlineExecutor
from penstock.topics.core.codec import encode_entries
from penstock.topics.core.entries import Began
from penstock.topics.core.partition import Partition
from penstock.topics.core.registry import Registry
from penstock.topics.engine.writers import Audience, PartitionWriter
from penstock.topics.persist.snapshot import (
    Restoring,
    SnapshotHeader,
    SnapshotReader,
    decode_kept,
    encode_snapshot,
)
from tests.simulator.system.loop import NodeClock, NodeLoop

if TYPE_CHECKING:
    from tests.simulator.system.world import World

SEGMENT_BYTES = 1 << 15
MS = 1_000_000


class SlowDisk:
    """Stands for the thread of the WAL: a group is on the disk some time after it was taken."""

    def __init__(self, node: Node, write: Callable[[Any], None]) -> None:
        self._node = node
        self._write = write
        self.group: Any = None

    def take(self, group: Any) -> None:
        self.group = group
        node = self._node
        node.loop.call_later(node.world.disk_delay_ms(node) / 1e3, self._done)
        node.world.handed(node)

    def _done(self) -> None:
        group, self.group = self.group, None
        self._write(group)

    def tear(self) -> None:
        """The power goes while the group is being written."""
        if self.group is not None:
            self._write(self.group)


class SlowPool:
    """Stands for the threads of the read scheduler."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._node.loop.call_later(0.002, call, *arguments)


class Node:
    """A node over all of its lives. Its disk and its snapshots survive, nothing else."""

    def __init__(self, world: World, member: int, founders: Members) -> None:
        self.world = world
        self.member = member
        self.founders = founders
        self.random = Random(f"{world.seed} {member}")
        self.read_random = Random(f"{world.seed} {member} reads")
        self.disk = FakeDisk(self.random)
        self.disk.begins = False
        self.snapshots: dict[int, list[tuple[int, bytes]]] = {n: [] for n in world.partitions}
        self.incoming: dict[int, tuple[int, bytes]] = {}
        self.is_up = False
        self.is_damaged = False
        self.lives = 0
        self.ahead_ms = 0
        self.store: SegmentStore
        self.loop: NodeLoop
        self.clock: SteadyClock
        self.journal: ReplicatedJournal
        self.writers: list[PartitionWriter] = []

    # Start and end -----------------------------------------------------------------------------
    def start(self) -> None:
        """Open what the disk has, and take part."""
        self.lives += 1
        self.loop = NodeLoop(self.world.loop)
        try:
            self._open()
        except PenstockError:
            if not self.world.may_be_damaged(self):
                raise
            self.is_damaged = True
            return
        self.is_up = True
        self._call(self._restore)

    @property
    def has_failed(self) -> bool:
        """Whether it takes part again only after a restart; its groups may not know yet."""
        reasons = [group.reason for group in self.journal.groups.values()]
        return any(reasons) or self.store._tail.read_only is not None

    def _open(self) -> None:
        options = SegmentOptions(
            segment_bytes=SEGMENT_BYTES, isolate_damage=True,
            background=InlineExecutor(), entropy=self.random.randbytes,
        )  # fmt: skip
        self.store = SegmentStore(self.disk, options)
        if self.store.damaged():
            raise next(iter(self.store.damaged().values()))

    def _restore(self) -> None:
        world, loop = self.world, self.loop
        self.clock = SteadyClock(NodeClock(world.loop, self.ahead_ms))
        registry = Registry()
        registry.is_replicated = True
        journal = self.journal = ReplicatedJournal(
            self.store, partitions=len(world.partitions), loop=loop, clock=self.clock,  # type: ignore[arg-type]
            options=GroupOptions(
                member=self.member, founders=self.founders, limits=world.faults.limits,
                tick_ms=int(100 * world.faults.tick_share(self.member)),
            ),
            began=self._began, draw=self._drawn,
        )  # fmt: skip
        self.slow_disk = SlowDisk(self, journal.wal._write)
        journal.wal._writer = self.slow_disk  # type: ignore[assignment]
        journal.wal._busy_ns = lambda: 0
        journal.reads._pool = SlowPool(self)  # type: ignore[assignment]
        journal.connect(self)
        journal.on_leader.append(partial(world.checker.led, self))
        self.writers = [self._writer(number, registry) for number in world.partitions]
        journal.start()
        journal.reads.start()
        for writer in self.writers:
            self._open_group(writer)
        with suppress(StopIteration):  # it waits only where a node is alone
            journal.begin().send(None)

    def _writer(self, number: int, registry: Registry) -> PartitionWriter:
        partition = Partition(registry, number=number, partitions=len(self.world.partitions))
        audience = Audience(_ignore, _ignore, (), (), _ignore, self._leads)
        return PartitionWriter(
            number, partition, self.journal, loop=self.loop, audience=audience  # type: ignore[arg-type]
        )  # fmt: skip

    def _leads(self, partition: Partition) -> None:
        self.clock.go_on_from(partition.now_ms)

    def _began(self, _partition: int, term: int) -> bytes:
        return encode_entries([Began(term, self.member, self.clock.now_ms())])

    def _drawn(self, low: int, high: int) -> int:
        """Numbers of reads decide nothing: drawn apart, they leave the seeds as they are."""
        random = self.read_random if high == FIRST_READ_MAX else self.random
        return random.randint(low, high)

    def _open_group(self, writer: PartitionWriter) -> None:
        number, kept = writer.number, self.snapshots[writer.number]
        bounds = self.store.bounds(number)
        arrived = self.incoming.pop(number, None)
        if arrived is not None and arrived[0] == bounds.boundary_index:
            kept.append(arrived)
        writer.executor.start()
        index = 0
        if kept:
            index, data = kept[-1]
            deque(self._load(writer, data), maxlen=0)
        writer.applied_index = index
        writer.executor.restored()
        start = Start(index, index, writer.partition.members)
        group = self.journal.open_group(number, writer, start)
        apply = group._apply

        def applied(entries: Any) -> None:
            for entry in entries:
                self.world.checker.applies(self, writer, entry)
                apply([entry])
                self.world.checker.has_applied(writer, entry)

        group._apply = applied  # type: ignore[method-assign]
        self.world.checker.started(self, number, index)

    def _load(self, writer: PartitionWriter, data: bytes) -> Iterator[None]:
        """Read a snapshot in; what may happen meanwhile happens where this yields."""

        def read(count: int, offset: int) -> bytes:
            return data[offset : offset + count]

        reader, restoring = SnapshotReader("snapshot", read), Restoring(writer.partition)
        for payload in reader.payloads():
            restoring.take(decode_kept("snapshot", payload))
            yield

    def crash(self, *, power: bool) -> None:
        """End this life: by SIGKILL, or with all that was not synced."""
        if not self.is_up:
            return
        self.is_up = False
        self.loop.end()
        self.disk.sync_error_after = self.disk.space_bytes = None
        if power:
            self.disk.lose_power_after = self.random.randrange(4)
            self.slow_disk.tear()
            self.disk = self.disk.after_power_loss(self.random)
            self.disk.begins = False
        else:
            self.disk.after_kill()

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A call from outside, on this node's loop."""
        self.loop._make(call, arguments)

    # Letters -----------------------------------------------------------------------------------
    def send(self, member: int, letter: bytes, *, is_droppable: bool) -> None:
        self.world.send(self, member, letter, is_droppable=is_droppable)

    def flush(self) -> None:
        """Nothing waits here."""

    def send_snapshot(self, partition: int, message: InstallSnapshot) -> None:
        self.world.send_snapshot(self, partition, message)

    def receive(self, sender: int, letter: bytes) -> None:
        self._call(self.journal.receive, sender, letter)

    # Snapshots ---------------------------------------------------------------------------------
    def compact(self) -> None:
        """Snapshot what has grown enough, and cut the log behind the snapshot before."""
        for writer in self.writers:
            kept, number = self.snapshots[writer.number], writer.number
            group = self.journal.groups[number]
            index, last = writer.applied_index, kept[-1][0] if kept else 0
            is_still = writer.is_idle and not writer.is_out_of_service
            is_still = is_still and not (group._is_loading or group.core.installing)
            if not is_still or index - last < self.world.faults.snapshot_every:
                continue
            header = SnapshotHeader(number, index)
            kept.append((index, b"".join(encode_snapshot(writer.partition, header))))
            self.world.checker.snapshotted(self, writer, index)
            self.journal.snapshotted(number, index)
            upto = self.journal.may_compact_to(number, last)
            del kept[:-2]
            if upto > self.store.bounds(number).boundary_index:
                done = partial(self._compacted, number, upto)
                submit = partial(self.journal.submit, Compact(number, upto), done)
                writer.executor.submit(WorkKind.MAINTENANCE, submit)

    def _compacted(self, number: int, upto: int, error: Exception | None) -> None:
        if error is None:
            self.journal.compacted(number, upto)

    def install(self, partition: int, message: InstallSnapshot, data: bytes) -> None:
        """Take in a snapshot as `Recovery.install` does."""
        writer, group = self.writers[partition], self.journal.groups[partition]
        if writer.is_out_of_service or group._is_loading:
            return
        if not group.begin_install(message):
            group.take((message,))
            return
        self.incoming[partition] = (message.mark.index, data)
        writer.executor.start()
        writer.partition.forget()
        self.loop.create_task(self._take_in(writer, message, data))

    async def _take_in(
        self, writer: PartitionWriter, message: InstallSnapshot, data: bytes
    ) -> None:
        """Slice by slice, as `Recovery` does, while the disk goes on."""
        partition, slices = writer.number, self._load(writer, data)
        sentinel = object()
        while (
            await writer.run(WorkKind.MAINTENANCE, partial(next, slices, sentinel)) is not sentinel
        ):
            pause = self.loop.create_future()
            self.loop.call_later(self.random.randrange(20) / 1e3, pause.set_result, None)
            await pause
        writer.applied_index = message.mark.index
        writer.executor.restored()
        self.world.checker.started(self, partition, message.mark.index)
        await self.journal.install(partition, message)
        self.snapshots[partition].append(self.incoming.pop(partition))


def _ignore(*_: object) -> None:
    pass
