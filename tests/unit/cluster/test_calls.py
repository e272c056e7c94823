"""Requests passed on: answered once, certainly not done, or lost with an unknown outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.cluster.calls import (
    CallLost,
    Calls,
    CallTooLarge,
    PassedBack,
    PassedOn,
    PeerAway,
)
from penstock.cluster.frames import BadLetter
from penstock.cluster.outbox import ANSWER, CALL, ITEM_BYTES_MAX
from tests.waiting import until

REQUEST = PassedOn("POST", "/v0/topics/t", "", {"content-type": "application/json"}, b"{}")
ANSWER_BACK = PassedBack(200, b"{}", b"application/json", ((b"x", b"y"),))


class Pair:
    """Two nodes whose items are delivered by the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        self.is_away = False
        self.release = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.here = Calls(self.send, self.serve, loop=loop)
        self.there = Calls(self.send, self.serve, loop=loop)

    def send(self, member: int, channel: int, payload: bytes) -> bool:
        if not self.is_away:
            self.sent.append((member, channel, payload))
        return not self.is_away

    async def serve(self, request: PassedOn) -> PassedBack:
        assert request == REQUEST
        await self.release.wait()
        return ANSWER_BACK

    async def call(self, partition: int = 3) -> asyncio.Task[PassedBack]:
        task = asyncio.ensure_future(self.here.call(2, partition, REQUEST))
        await until(lambda: self.sent or task.done())
        return task

    def deliver(self) -> None:
        (_, channel, payload) = self.sent.pop()
        if channel == CALL:
            self.there.on_call(1, payload)
        else:
            assert channel == ANSWER
            self.here.on_answer(2, payload)


def run(test: Callable[[Pair], object]) -> None:
    async def started() -> None:
        await test(Pair())  # type: ignore[misc]

    asyncio.run(started())


def test_a_request_and_its_answer_arrive_as_they_are() -> None:
    async def test(pair: Pair) -> None:
        task = await pair.call()
        pair.deliver()
        pair.release.set()
        await until(lambda: pair.sent)
        pair.deliver()
        assert await task == ANSWER_BACK
        assert (pair.here.sent, pair.there.served, pair.here.lost) == (1, 1, 0)

    run(test)


def test_what_could_not_be_sent_is_certainly_not_done() -> None:
    async def test(pair: Pair) -> None:
        pair.is_away = True
        with pytest.raises(PeerAway, match="nothing was sent"):
            await pair.here.call(2, 0, REQUEST)
        large = PassedOn("POST", "/", "", {}, bytes(ITEM_BYTES_MAX))
        with pytest.raises(CallTooLarge):
            await pair.here.call(2, 0, large)
        assert pair.here.sent == 0

    run(test)


@pytest.mark.parametrize(
    ("lose", "is_lost"),
    [
        (lambda calls: calls.on_link(2, False), True),
        (lambda calls: calls.on_link(3, False), False),
        (lambda calls: calls.on_link(2, True), False),
        (lambda calls: calls.on_leader(3, 9), True),
        (lambda calls: calls.on_leader(3, 2), False),
        (lambda calls: calls.on_leader(4, 9), False),
        (lambda calls: calls.stop(), True),
    ],
    ids=["link", "other link", "link up", "leader", "same leader", "other partition", "stop"],
)
def test_what_was_sent_and_lost_may_have_been_done(
    lose: Callable[[Calls], None], is_lost: bool
) -> None:
    async def test(pair: Pair) -> None:
        task = await pair.call(partition=3)
        lose(pair.here)
        if is_lost:
            with pytest.raises(CallLost):
                await task
        else:
            pair.deliver()
            pair.release.set()
            await until(lambda: pair.sent)
            pair.deliver()
            assert await task == ANSWER_BACK

    run(test)


@pytest.mark.parametrize("failure", ["serve", "size", "link"])
def test_a_call_that_cannot_be_answered_ends_with_an_unknown_outcome(failure: str) -> None:
    async def test(pair: Pair) -> None:
        async def serve(_request: PassedOn) -> PassedBack:
            if failure == "serve":
                raise ValueError("no answer")
            if failure == "link":
                pair.is_away = True
            return ANSWER_BACK

        def send(member: int, channel: int, payload: bytes) -> bool:
            tried.append(payload)
            is_too_large = failure == "size" and len(tried) == 1
            if failure == "link" and len(tried) == 3:
                pair.is_away = False
            return not is_too_large and pair.send(member, channel, payload)

        tried: list[bytes] = []
        pair.there = Calls(send, serve, loop=asyncio.get_running_loop())
        task = await pair.call()
        pair.deliver()
        await until(lambda: pair.sent)
        pair.deliver()
        answer = await task
        assert answer.status == 504
        assert b'"outcome_unknown"' in answer.body

    run(test)


def test_a_late_or_a_strange_answer_is_dropped_and_bad_bytes_are_a_bad_letter() -> None:
    async def test(pair: Pair) -> None:
        task = await pair.call()
        pair.deliver()
        pair.release.set()
        await until(lambda: pair.sent)
        answer = pair.sent[-1][2]
        pair.here.on_answer(7, answer)  # another member may not answer for it
        assert not task.done()
        pair.here.on_answer(2, answer)
        pair.here.on_answer(2, answer)
        assert await task == ANSWER_BACK
        pair.here.on_answer(2, answer)
        with pytest.raises(BadLetter):
            pair.here.on_answer(2, b"\xc1")
        with pytest.raises(BadLetter):
            pair.there.on_call(1, b"\xc1")

    run(test)
