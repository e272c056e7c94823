"""Many watchers of one topic: in batches that take turns, each with all that came up to its own."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from unittest import mock

from penstock.log.wal import ROUND_NS_A_WATCHER
from penstock.server.http.message import Direct, as_chunk
from penstock.server.push.shared import BATCH_MEMBERS_MAX, EventBatch, WatchCursor
from penstock.topics.engine.watch import PageShape
from tests.unit.server.fakes import Client, FakeStream, run, serving
from tests.unit.server.push.test_pushing import kinds, payloads
from tests.waiting import until

MANY = 5 * BATCH_MEMBERS_MAX // 2


async def watchers(client: Client, count: int, **fields: object) -> list[FakeStream]:
    await client.ask("PUT", "/v0/topics/t")
    return [(await client.watch(topics={"t": {}}, **fields))[0] for _ in range(count)]


def having(streams: list[FakeStream], wanted: list[object]) -> int:
    return sum(payloads(stream.events()) == wanted for stream in streams)


def batches(client: Client) -> list[int]:
    (watch,) = client.application.context.shared.watches
    return [len(batch.members) for batch in watch.batches]


@asynccontextmanager
async def first_batch_served(client: Client, streams: list[FakeStream]) -> AsyncIterator[None]:
    """The others have not had their turn; they get it at the end."""
    turns: deque[Callable[[], None]] = deque()
    with mock.patch.object(client.application.context.shared, "_later", turns.append):
        await client.write("t", 1)
        await until(lambda: having(streams, [1]))
        yield
        while turns:
            turns.popleft()()


def test_many_watchers_get_everything_once_and_in_order():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            wanted = list(range(40))
            for number in wanted:
                client.start("POST", "/v0/topics/t", {"records": [{"data": number}]})
                await asyncio.sleep(0)
            await until(lambda: having(streams, wanted) == MANY)
            for stream in streams:
                assert kinds(stream.events())[-1] == "caught-up"
            assert sum(batches(client)) == MANY

    run(go)


def test_what_is_committed_during_a_round_goes_to_those_who_are_still_to_come():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            async with first_batch_served(client, streams):
                assert having(streams, [1]) == BATCH_MEMBERS_MAX, "one batch, then the loop goes on"
                await client.write("t", 2)
            assert having(streams, [1, 2]) == MANY
            at_once = [s for s in streams if kinds(s.events()).count("record") == 1]
            assert len(at_once) == MANY - BATCH_MEMBERS_MAX, "who came later got both together"

    run(go)


def test_a_round_can_be_seen_and_writes_gather_until_it_is_over():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            window = client.application.context.engine.journal.wal.window
            assert window.round_ns == 0
            async with first_batch_served(client, streams):
                shown = (await client.ask("GET", "/v0/scheduler?topic=t")).json["topic"]
                assert shown["watchers"] == MANY
                behind = MANY - BATCH_MEMBERS_MAX
                assert shown["watchers_behind"] == behind
                assert shown["reason"] == f"watchers yet to have their turn in this round: {behind}"
                assert window.round_ns == MANY * ROUND_NS_A_WATCHER
            assert window.round_ns == 0
            shown = (await client.ask("GET", "/v0/scheduler?topic=t")).json["topic"]
            assert shown["watchers_behind"] == 0
            assert shown["reason"].startswith("nothing to push")

    run(go)


def test_a_watcher_without_room_leaves_its_batch_and_misses_nothing():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            slow = streams[BATCH_MEMBERS_MAX + 5]
            slow.room = 0
            for number in range(5):
                await client.write("t", number)
            others = [stream for stream in streams if stream is not slow]
            await until(lambda: having(others, list(range(5))) == MANY - 1)
            assert payloads(slow.events()) == []
            slow.read(None)
            assert payloads(slow.events()) == list(range(5))
            assert sum(batches(client)) == MANY, "it has caught up and is one of them again"

    run(go)


def test_watchers_who_came_at_different_times_become_one_batch():
    async def go():
        async with serving() as client:
            streams = []
            for number in range(8):
                streams += await watchers(client, 1)
                await client.write("t", number)
            await until(lambda: having(streams, list(range(8))) == 8)
            assert batches(client) == [8]

    run(go)


def test_more_than_a_page_comes_in_several_events_and_the_last_one_tells_that_it_was_all():
    async def go():
        async with serving() as client:
            streams = await watchers(client, 3, limit=2)
            await client.write("t", *range(5))
            await until(lambda: having(streams, list(range(5))) == 3)
            for stream in streams:
                assert kinds(stream.events())[1:] == ["record"] * 3 + ["caught-up"]
            assert batches(client) == [3], "nobody had to be served alone"

    run(go)


def test_a_topic_that_goes_is_told_to_every_batch_and_their_streams_end():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            await client.ask("DELETE", "/v0/topics/t")
            await until(lambda: all(stream.closed for stream in streams))
            assert all(kinds(stream.events())[-1] == "topic-deleted" for stream in streams)
            assert client.application.context.shared.watches == []

    run(go)


def test_watchers_who_go_during_a_round_stop_nobody():
    async def go():
        async with serving() as client:
            streams = await watchers(client, MANY)
            async with first_batch_served(client, streams):
                waiting = [stream for stream in streams if not payloads(stream.events())]
                for stream in waiting[:BATCH_MEMBERS_MAX]:
                    stream.on_gone()
            left = waiting[BATCH_MEMBERS_MAX:]
            assert having(left, [1]) == len(left) > 0
            assert sum(batches(client)) == MANY - BATCH_MEMBERS_MAX

    run(go)


class Reader:
    """A member without a socket, who takes everything or nothing."""

    def __init__(self, *, takes: bool) -> None:
        self.batch: EventBatch | None = None
        self.takes = takes
        self.got: list[bytes] = []
        self.cursors: list[WatchCursor] = []

    def offer(self, frames: bytes) -> bool:
        if self.takes:
            self.got.append(frames)
        return self.takes

    def direct(self) -> None:
        return None

    def rest(self, data: memoryview) -> None:
        raise AssertionError("it has no socket that could leave anything over")

    def left_behind(self, cursor: WatchCursor) -> None:
        self.cursors.append(cursor)


def test_a_batch_whose_watchers_all_fall_behind_stops_nobody():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            epoch = client.engine.topic("t").epoch
            quick, slow, woken = Reader(takes=True), Reader(takes=False), []
            watches = client.application.context.shared
            watches.join(quick, "t", PageShape(), WatchCursor(0, epoch))
            watches.join(slow, "t", PageShape(), WatchCursor(1, epoch))
            client.engine.watchers.listen("t", woken.append)
            await client.write("t", 2)
            await until(lambda: woken)
            assert len(quick.got) == 1
            assert slow.cursors == [WatchCursor(1, epoch)]
            assert batches(client) == [1]

    run(go)


class Peer:
    """A member with a socket whose other end reads nothing until it is told to."""

    def __init__(self) -> None:
        self.batch: EventBatch | None = None
        self.ours, self.theirs = socket.socketpair()
        for end in (self.ours, self.theirs):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self.closing = False
        self.left_over = b""
        self.offered: list[bytes] = []
        self.counted = 0

    def direct(self) -> Direct:
        return Direct(
            self.ours.fileno(), lambda: self.closing, lambda: len(self.left_over), self.count
        )

    def count(self, size: int) -> None:
        self.counted += size

    def rest(self, data: memoryview) -> None:
        self.left_over += data

    def offer(self, frames: bytes) -> bool:
        self.offered.append(frames)
        return not self.closing

    def left_behind(self, cursor: WatchCursor) -> None:
        raise AssertionError(f"nobody is left behind here, at {cursor}")

    def read(self) -> bytes:
        found = b""
        with suppress(BlockingIOError):
            while data := self.theirs.recv(65_536):
                found += data
        return found

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def test_sockets_are_written_to_directly_unless_something_waits_or_they_close():
    peers = [Peer() for _ in range(4)]
    whole, waiting, closing, full = peers
    batch = EventBatch(None, WatchCursor(0, 1))  # type: ignore[arg-type]
    for peer in peers:
        batch.take(peer)
    waiting.left_over = b"x"
    closing.closing = True
    with suppress(BlockingIOError):
        while full.ours.send(b"y" * 4_096):
            pass
    assert batch.write(b"frame") == [closing], "it took nothing, all others did"
    assert whole.read() == as_chunk(b"frame")
    assert (waiting.read(), waiting.offered) == (b"", [b"frame"])
    assert (closing.read(), closing.offered) == (b"", [b"frame"])
    assert full.offered == [b"frame"], "its stream knows how to wait"
    assert sum(peer.counted for peer in peers) == len(as_chunk(b"frame"))
    for peer in peers:
        peer.close()


def test_what_a_socket_does_not_take_is_left_to_its_stream():
    peer = Peer()
    batch = EventBatch(None, WatchCursor(0, 1))  # type: ignore[arg-type]
    batch.take(peer)
    frames = bytes(range(256)) * 4_096
    assert batch.write(frames) == []
    sent = peer.read()
    assert 0 < len(sent) < len(frames)
    assert sent + peer.left_over == as_chunk(frames)
    assert not peer.offered
    peer.close()


def test_who_left_a_batch_is_written_to_no_more():
    stays, leaves = Peer(), Peer()
    batch = EventBatch(None, WatchCursor(0, 1))  # type: ignore[arg-type]
    batch.take(stays)
    batch.take(leaves)
    batch.write(b"1")
    batch.lose(leaves)
    batch.write(b"2")
    first, second = as_chunk(b"1"), as_chunk(b"2")
    assert (stays.read(), leaves.read()) == (first + second, first)
    stays.close()
    leaves.close()
