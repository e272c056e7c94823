"""The segment store on a hostile disk, thousands of seeded runs.

A group is one block of one log, so after any crash the whole store must equal the model after some
group, no earlier than the last one acknowledged as synced. PENSTOCK_SEED replays one run,
PENSTOCK_RUNS asks for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from penstock.kernel.errors import Corrupt, PenstockError, Unavailable
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    Damaged,
    DiskFull,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    ReadOnly,
    SetHardState,
    SyncFailed,
    Truncate,
    Underway,
)
from penstock.log.stores.segment import SegmentOptions, SegmentStore
from penstock.testing import FakeDisk, InlineExecutor, PowerLoss, seeded, seeds

RUNS = 2_000
CHUNKS = 8
PARTITIONS = 4


class Held(NamedTuple):
    """One partition in the model; never changed, only replaced."""

    boundary: int = 0
    boundary_term: int = 0
    entries: tuple[LogEntry, ...] = ()
    hard: HardState = HardState()

    @property
    def last(self) -> int:
        return self.boundary + len(self.entries)

    @property
    def bounds(self) -> Bounds:
        last_term = self.entries[-1].term if self.entries else self.boundary_term
        return Bounds(self.boundary, self.boundary_term, self.last, last_term)


State = dict[int, Held]


def apply(held: Held, op: Operation) -> Held:
    match op:
        case Append(_, entries):
            return held._replace(entries=held.entries + tuple(entries))
        case SetHardState(_, term, vote):
            return held._replace(hard=HardState(term, vote))
        case Truncate(_, from_index):
            return held._replace(entries=held.entries[: max(from_index - held.boundary - 1, 0)])
        case Compact(_, upto):
            if upto <= held.boundary:
                return held
            count = upto - held.boundary
            return held._replace(
                boundary=upto,
                boundary_term=held.entries[count - 1].term,
                entries=held.entries[count:],
            )
        case InstallBoundary(_, index, term):
            return held._replace(boundary=index, boundary_term=term, entries=())


def some_operation(random: Random, partition: int, held: Held, payload: bytes) -> Operation:
    term = held.bounds.last_term + random.choice((0, 0, 0, 1))
    chance = random.random()
    if chance < 0.55 or not held.entries:
        count = random.randrange(1, 5)
        return Append(
            partition,
            [
                LogEntry(held.last + 1 + i, term, random.choice((payload, b"", payload * 3)))
                for i in range(count)
            ],
        )
    if chance < 0.65:
        return SetHardState(partition, held.hard.term + 1, random.randrange(5))
    if chance < 0.75:
        return Truncate(partition, random.randrange(held.boundary + 1, held.last + 2))
    if chance < 0.97:
        return Compact(partition, random.randrange(held.boundary, held.last + 1))
    return InstallBoundary(partition, held.last + random.randrange(3), term)


def some_group(
    random: Random, state: State, serial: int, free: Sequence[int] = range(PARTITIONS)
) -> tuple[list[Operation], State]:
    """Operations that can be, over a few partitions, and the state they lead to."""
    after = dict(state)
    group: list[Operation] = []
    # The first partition hardly ever compacts: it is the one that pins old segments.
    for partition in random.sample(free, random.randrange(1, len(free) + 1)):
        for _ in range(random.choice((1, 1, 2, 3))):
            held = after.get(partition, Held())
            payload = b"%d-%d." % (serial, partition) * random.randrange(30)
            op = some_operation(random, partition, held, payload)
            if partition == 0 and not isinstance(op, Append | SetHardState):
                continue
            group.append(op)
            after[partition] = apply(held, op)
    return (group, after) if group else some_group(random, state, serial, free)


def picture(store: SegmentStore) -> State:
    state: State = {}
    for partition in store.partitions():
        bounds = store.bounds(partition)
        entries = store.read(
            partition, bounds.boundary_index + 1, max_entries=1 << 30, max_bytes=1 << 40
        )
        held = Held(
            bounds.boundary_index,
            bounds.boundary_term,
            tuple(entries),
            store.hard_state(partition),
        )
        assert held.bounds == bounds
        assert [store.term_at(partition, e.index) for e in entries] == [e.term for e in entries]
        state[partition] = held
    return state


class World:
    """A disk, a store on it, and every state the store may be found in."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = FakeDisk(random)
        self.options = SegmentOptions(
            segment_bytes=random.choice((1024, 2048, 4096, 16384, 65536)),
            reclaim_below=random.choice((0.25, 0.9)),
            background=InlineExecutor(),
            entropy=random.randbytes,
        )
        self.candidates: list[State] = [{}]
        self.serial = 0
        self.store = SegmentStore(self.disk, self.options)

    @property
    def state(self) -> State:
        return self.candidates[-1]

    def write(self) -> None:
        self.serial += 1
        random, sync = self.random, self.random.random() < 0.6
        group, after = some_group(random, self.state, self.serial)
        if random.random() < 0.05:
            group.append(Append(9, [LogEntry(7, 1, b"a gap")]))
        self.candidates.append(after)  # from here on it may be found
        failed = dict(self.store.write(group, sync=sync))
        failed.pop(9, None)
        if not failed:
            if sync:
                self.candidates = [after]
            return
        assert set(failed) == {op.partition for op in group} - {9}
        error = failed.popitem()[1]
        assert isinstance(error, (ReadOnly, SyncFailed))
        if isinstance(error, DiskFull):
            self.candidates.pop()  # refused: it must never be found
        assert self.store.status().read_only_reason
        visible = self.candidates[-1 if isinstance(error, DiskFull) else -2]
        assert same(visible, picture(self.store))
        if not isinstance(error, DiskFull):
            self.reopen_after(self.disk.after_kill())

    def fly(self) -> None:
        """Groups that the disk writes by itself, several at a time, finished in order."""
        visible, air = self.state, self.take_off()
        states = [after for _, after in air]
        refused = False
        for number, (underway, after) in enumerate(air):
            failed = underway.finish()
            if not failed:
                assert not refused, "nothing is durable after what failed"
                self.candidates = states[number:]
                visible = after
                continue
            error = next(iter(failed.values()))
            assert isinstance(error, (ReadOnly, SyncFailed))
            if isinstance(error, DiskFull):
                assert number == len(air) - 1, "others go on from it"
                self.candidates.pop()  # refused: it must never be found
                assert same(visible, picture(self.store))
                return
            refused = True
        if refused:
            assert same(visible, picture(self.store))
            self.reopen_after(self.disk.after_kill())

    def take_off(self) -> list[tuple[Underway, State]]:
        air: list[tuple[Underway, State]] = []
        free = list(range(PARTITIONS))
        while free and len(air) < 3:
            self.serial += 1
            group, after = some_group(self.random, self.state, self.serial, free)
            self.candidates.append(after)  # from here on it may be found
            underway = self.store.begin(group, sync=True)
            if underway is None:
                self.candidates.pop()  # nothing was done
                break
            free = [p for p in free if p not in {op.partition for op in group}]
            air.append((underway, after))
        return air

    def reclaim(self) -> None:
        try:
            self.store.reclaim()
        except DiskFull:
            return
        except (ReadOnly, SyncFailed):
            self.reopen_after(self.disk.after_kill())

    def reopen_after(self, disk: FakeDisk) -> None:
        """Open what a crash left, with crashes in between, and compare."""
        random = self.random
        while True:
            self.disk = disk
            if random.random() < 0.3:
                disk.lose_power_after = random.randrange(8)
            try:
                self.store = SegmentStore(disk, self.options)
                break
            except PowerLoss:
                disk = disk.after_power_loss(random)
            except Unavailable:  # a sync error or a full disk while opening
                disk.space_bytes = disk.sync_error_after = None
                disk = disk.after_kill()
        disk.lose_power_after = None
        found = picture(self.store)
        matching = [state for state in self.candidates if same(state, found)]
        assert matching, f"found {found}\nexpected one of {self.candidates}"
        self.candidates = [matching[-1]]

    def close_and_open(self) -> None:
        self.disk.space_bytes = self.disk.sync_error_after = None
        self.store.close()
        self.store = SegmentStore(self.disk, self.options)
        assert self.store.recovery.cut is None or self.had_failures
        assert same(self.state, picture(self.store))
        self.candidates = [self.state]

    had_failures = False

    def disturb(self) -> None:
        random, disk = self.random, self.disk
        match random.randrange(6):
            case 0:
                self.had_failures = True
                disk.space_bytes = random.randrange(6000)
            case 1:
                self.had_failures = True
                disk.sync_error_after = random.randrange(4)
            case 2:
                disk.short_writes = random.choice((0.0, 0.5))
            case 3:
                self.reopen_after(disk.after_kill())
            case _:
                disk.lose_power_after = random.randrange(12)

    def run(self) -> None:
        for _ in range(self.random.randrange(5, 40)):
            try:
                self.step()
            except PowerLoss:
                self.had_failures = True
                self.reopen_after(self.disk.after_power_loss(self.random))

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.45:
            self.write()
        elif chance < 0.75:
            self.fly()
        elif chance < 0.80:
            self.reclaim()
        elif chance < 0.83:
            self.close_and_open()
        elif chance < 0.88:
            self.disk.space_bytes = None
        else:
            self.disturb()


def same(state: State, found: State) -> bool:
    """Equal, but for partitions of which nothing was ever kept."""
    return {p: h for p, h in state.items() if h != Held()} == {
        p: h for p, h in found.items() if h != Held()
    }


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_after_any_crash_the_store_is_at_a_group_no_older_than_the_last_synced(chunk: int) -> None:
    for seed in seeds(RUNS // CHUNKS):
        with seeded(seed) as random:
            World(random).run()


def filled(random: Random) -> tuple[FakeDisk, SegmentOptions, State]:
    """A closed store of several segments, every byte of it synced."""
    world = World(random)
    for _ in range(random.randrange(3, 25)):
        group, after = some_group(random, world.state, world.serial)
        world.serial += 1
        assert not world.store.write(group, sync=random.random() < 0.8)
        world.candidates = [after]
    world.store.close()
    return world.disk, world.options, world.state


def written_bytes(disk: FakeDisk) -> list[tuple[str, int]]:
    """Every place up to the end of the blocks of each segment."""
    return [
        (name, offset)
        for name in disk.names()
        for offset in range(len(disk.content(name).rstrip(b"\0")))
    ]


def test_a_flipped_byte_of_a_closed_store_is_refused_and_never_skipped() -> None:
    refused = 0
    places = seeds(400)
    for seed in places:
        with seeded(seed) as random:
            disk, options, state = filled(random)
            name, offset = random.choice(written_bytes(disk))
            disk.flip(name, offset, 1 << random.randrange(8))
            try:
                store = SegmentStore(disk, options)
            except Corrupt:
                refused += 1
                continue
            # Only the seal itself, which holds nothing, or the unused padding of a header.
            assert same(state, picture(store))
    assert refused >= len(places) * 0.8


def test_a_full_disk_is_left_behind_without_hand_work() -> None:
    for seed in seeds(50):
        with seeded(seed) as random:
            world = World(random)
            world.disk.space_bytes = 0
            while world.disk.space_bytes is not None:
                group, after = some_group(random, world.state, world.serial)
                failed = world.store.write(group, sync=True)
                if failed:
                    assert all(isinstance(error, DiskFull) for error in failed.values())
                    assert same(world.state, picture(world.store))
                    world.disk.space_bytes = None
                else:
                    world.candidates = [after]
            group, after = some_group(random, world.state, world.serial)
            assert not world.store.write(group, sync=True)
            assert world.store.status().read_only_reason is None
            assert same(after, picture(world.store))


def test_after_a_sync_error_writes_are_refused_for_good_and_reads_go_on() -> None:
    for seed in seeds(50):
        with seeded(seed) as random:
            world = World(random)
            group, after = some_group(random, {}, 1)
            assert not world.store.write(group, sync=True)
            world.disk.sync_error_after = 0
            second = [Append(1, [LogEntry(after.get(1, Held()).last + 1, 9, b"second")])]
            failed = world.store.write(second, sync=True)
            assert {type(error) for error in failed.values()} == {SyncFailed}
            assert same(after, picture(world.store))
            failed = world.store.write(second, sync=True)
            assert {type(error) for error in failed.values()} == {ReadOnly}
            assert "Input/output error" in str(world.store.status().read_only_reason)
            assert same(after, picture(world.store))


def test_an_error_of_a_read_is_told_to_the_reader_alone() -> None:
    world = World(Random(1))
    assert not world.store.write([Append(1, [LogEntry(1, 1, b"x")])], sync=True)
    world.disk.read_error = True
    with pytest.raises(PenstockError, match="Input/output error"):
        world.store.read(1, 1, max_entries=1, max_bytes=1)
    world.disk.read_error = False
    assert world.store.read(1, 1, max_entries=1, max_bytes=1) == [LogEntry(1, 1, b"x")]


def test_a_payload_damaged_while_open_is_found_by_the_read() -> None:
    world = World(Random(1))
    assert not world.store.write([Append(1, [LogEntry(1, 1, b"payload")])], sync=True)
    name = world.disk.names()[0]
    world.disk.flip(name, world.disk.content(name).index(b"payload"), 1)
    with pytest.raises(Damaged, match=name):
        world.store.read(1, 1, max_entries=1, max_bytes=1)
