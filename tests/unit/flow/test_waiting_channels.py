"""The faces that wait: many tasks and threads, resizing and closing at any moment."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from random import Random

import pytest

from penstock.flow import Closed
from penstock.flow.waiting_channels import AsyncChannel, ThreadChannel
from penstock.kernel.errors import Busy
from penstock.testing import seeded, seeds

Item = tuple[int, int]


def check_delivery(received: list[list[Item]], senders: int, sent: dict[int, int]) -> None:
    """Every item once, and each sender's items in the order it sent them, at each receiver."""
    everything = [item for line in received for item in line]
    assert len(everything) == len(set(everything)), "doubled"
    assert sorted(everything) == [(s, n) for s in range(senders) for n in range(sent[s])], "lost"
    for line in received:
        for sender in range(senders):
            numbers = [n for s, n in line if s == sender]
            assert numbers == sorted(numbers), "reordered"


@pytest.mark.parametrize("seed", seeds(12))
def test_random_tasks_lose_double_and_reorder_nothing(seed: int) -> None:
    with seeded(seed) as random:
        asyncio.run(asyncio.wait_for(run_tasks(random), 60))


async def run_tasks(random: Random) -> None:
    channel: AsyncChannel[Item] = AsyncChannel(random.randint(1, 40))
    senders, receivers = random.randint(1, 6), random.randint(1, 4)
    sent = dict.fromkeys(range(senders), 0)
    received: list[list[Item]] = [[] for _ in range(receivers)]

    async def send(sender: int) -> None:
        for number in range(random.randint(0, 200)):
            await channel.send((sender, number), size_bytes=number)
            sent[sender] += 1
            if random.random() < 0.2:
                await asyncio.sleep(0)

    async def receive(line: list[Item]) -> None:
        while True:
            try:
                items = await channel.receive_many(random.randint(1, 9))
            except Closed:
                return
            line += items
            if random.random() < 0.3:
                await asyncio.sleep(0)
            channel.done(len(items), latency_ns=1)

    async def disturb() -> None:
        while True:
            channel.resize(random.randint(1, 60))
            channel.measure()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(receive(line)) for line in received]
    nuisance = asyncio.create_task(disturb())
    await asyncio.gather(*(send(number) for number in range(senders)))
    channel.close()
    await asyncio.gather(*tasks)
    nuisance.cancel()
    check_delivery(received, senders, sent)
    assert channel.core.occupied == 0


@pytest.mark.parametrize("seed", seeds(6))
def test_random_threads_lose_double_and_reorder_nothing(seed: int) -> None:
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with seeded(seed) as random:
            run_threads(random)
    finally:
        sys.setswitchinterval(switch)


class ThreadRun:
    """One channel with senders, receivers and a thread that resizes it all the time."""

    def __init__(self, random: Random) -> None:
        self.channel: ThreadChannel[Item] = ThreadChannel(random.randint(1, 40))
        self.totals = [random.randint(0, 300) for _ in range(random.randint(1, 5))]
        self.received: list[list[Item]] = [[] for _ in range(random.randint(1, 4))]
        self.over = threading.Event()
        self.random = random

    def send(self, sender: int, choice: Random) -> None:
        sent, total = 0, self.totals[sender]
        while sent < total:
            batch = [(sender, n) for n in range(sent, min(total, sent + choice.randint(1, 9)))]
            if len(batch) == 1:
                self.channel.send(batch[0])
            else:
                assert self.channel.send_many(batch) == len(batch)
            sent += len(batch)

    def receive(self, line: list[Item], choice: Random) -> None:
        count = 0
        while True:
            try:
                items = self.channel.receive_many(choice.randint(1, 9), done=count)
            except Closed:
                return
            count = len(items)
            line += items

    def disturb(self, choice: Random) -> None:
        while not self.over.is_set():
            self.channel.resize(choice.randint(1, 60))
            self.channel.measure()

    def start(self, work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=(*args, Random(self.random.random())))
        thread.start()
        return thread


def run_threads(random: Random) -> None:
    run = ThreadRun(random)
    senders = [run.start(run.send, number) for number in range(len(run.totals))]
    others = [run.start(run.receive, line) for line in run.received]
    others.append(run.start(run.disturb))
    for thread in senders:
        thread.join(60)
    run.over.set()
    run.channel.close()
    for thread in (*senders, *others):
        thread.join(60)
        assert not thread.is_alive()
    check_delivery(run.received, len(run.totals), dict(enumerate(run.totals)))
    assert run.channel.core.occupied == 0


def test_iterating_finishes_each_item_with_its_latency() -> None:
    async def scenario() -> None:
        channel: AsyncChannel[int] = AsyncChannel(10)
        for item in range(3):
            await channel.send(item)
        channel.close()
        assert [item async for item in channel] == [0, 1, 2]
        assert (channel.core.items_out, channel.core.latency.count) == (3, 3)

    asyncio.run(scenario())
    threads: ThreadChannel[int] = ThreadChannel(10)
    threads.send_many(range(3))
    threads.close()
    assert list(threads) == [0, 1, 2]
    assert (threads.core.items_out, threads.core.latency.count) == (3, 3)


def test_a_cancelled_sender_hands_its_turn_on() -> None:
    async def scenario() -> None:
        channel: AsyncChannel[str] = AsyncChannel(1)
        await channel.send("first")
        waiting = [asyncio.create_task(channel.send(name)) for name in ("cancelled", "next")]
        await asyncio.sleep(0)
        await channel.receive()
        channel.done()  # wakes the one that is cancelled before it can run
        waiting[0].cancel()
        assert await asyncio.wait_for(channel.receive(), 10) == "next"
        await waiting[1]

    asyncio.run(scenario())


def test_a_cancelled_receiver_hands_its_turn_on_and_takes_nothing() -> None:
    async def scenario() -> None:
        channel: AsyncChannel[str] = AsyncChannel(4)
        waiting = [asyncio.create_task(channel.receive()) for _ in range(2)]
        await asyncio.sleep(0)
        await channel.send("item")
        waiting[0].cancel()
        assert await asyncio.wait_for(waiting[1], 10) == "item"

    asyncio.run(scenario())


def test_an_async_channel_is_resized_from_another_thread_and_wakes_its_sender() -> None:
    async def scenario() -> None:
        channel: AsyncChannel[int] = AsyncChannel(1)
        await channel.send(0)
        blocked = asyncio.create_task(channel.send(1))
        await asyncio.sleep(0)
        assert not blocked.done()
        await asyncio.to_thread(channel.resize, 100)
        # The receiver makes nothing queued, so the woken sender needs no eighth of the target.
        await channel.receive()
        channel.done()
        await asyncio.wait_for(blocked, 10)
        assert channel.core.window == 100

    asyncio.run(scenario())


def test_close_wakes_everybody_who_waits() -> None:
    channel: ThreadChannel[int] = ThreadChannel(1)
    channel.send(0)
    outcomes: list[str] = []

    def send() -> None:
        try:
            channel.send(1)
        except Closed:
            outcomes.append("closed")

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    channel.close()
    for thread in threads:
        thread.join(30)
    assert outcomes == ["closed"] * 3
    assert channel.receive() == 0
    with pytest.raises(Closed):
        channel.receive()


def test_a_timeout_says_busy_and_leaves_nothing_behind() -> None:
    channel: ThreadChannel[int] = ThreadChannel(1)
    with pytest.raises(Busy, match="item within"):
        channel.receive(timeout_s=0)
    channel.send(0)
    with pytest.raises(Busy, match="credit within"):
        channel.send(1, timeout_s=0)
    assert channel.receive() == 0
    channel.done()
    channel.send(2)
    assert channel.receive() == 2
