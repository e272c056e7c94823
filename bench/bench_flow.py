"""Channel hand-over against the standard library's queues, and the cost of recording a latency."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from time import perf_counter_ns

from bench.report import Report
from penstock.flow import LatencyHistogram
from penstock.flow.waiting_channels import AsyncChannel, ThreadChannel

TITLE = "Flow: hand-over between stages, and recording a latency"
ITEMS = 200_000
PINGS = 10_000
BATCH = 256
WINDOW = 1_024
TINY = {"ITEMS": 2_000, "PINGS": 100}


def run(report: Report) -> None:
    peer = best(lambda: asyncio.run(async_queue()))
    report.row("asyncio.Queue, one item at a time", peer, "µs/item")
    compare(report, "AsyncChannel, one item at a time", lambda: asyncio.run(async_channel()), peer,
            "asyncio.Queue")  # fmt: skip
    peer = best(simple_queue_pings)
    report.row("queue.SimpleQueue, to a waiting thread and back", peer, "µs")
    compare(report, "ThreadChannel, to a waiting thread and back", channel_pings, peer,
            "queue.SimpleQueue")  # fmt: skip
    peer = best(simple_queue_stream)
    report.row("queue.SimpleQueue, stream", peer, "µs/item")
    compare(report, f"ThreadChannel, stream in batches of {BATCH}", channel_stream, peer,
            "queue.SimpleQueue")  # fmt: skip
    bounded = best(bounded_queue_stream)
    report.row("queue.Queue (bounded), stream", bounded, "µs/item")
    single = best(channel_single_stream)
    report.row("ThreadChannel, stream one item at a time", single, "µs/item",
               ratio=single / bounded, against="queue.Queue (bounded)")  # fmt: skip
    cost = best(record_latency)
    report.row("record a latency", cost, "µs", goal="at most 0.3 µs", met=cost <= 0.3)


def compare(report: Report, name: str, measure: Callable[[], float], peer: float, who: str) -> None:
    value = best(measure)
    unit = "µs" if "back" in name else "µs/item"
    report.row(name, value, unit, ratio=value / peer, against=who,
               goal="within 3×", met=value <= 3 * peer)  # fmt: skip


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(5))


async def async_queue() -> float:
    line: asyncio.Queue[int] = asyncio.Queue(WINDOW)

    async def send() -> None:
        for item in range(ITEMS):
            await line.put(item)

    sender = asyncio.create_task(send())
    began = perf_counter_ns()
    for _ in range(ITEMS):
        await line.get()
    await sender
    return (perf_counter_ns() - began) / ITEMS / 1_000


async def async_channel() -> float:
    channel: AsyncChannel[int] = AsyncChannel(WINDOW)

    async def send() -> None:
        for item in range(ITEMS):
            await channel.send(item)

    sender = asyncio.create_task(send())
    began = perf_counter_ns()
    for _ in range(ITEMS):
        await channel.receive()
        channel.done()
    await sender
    return (perf_counter_ns() - began) / ITEMS / 1_000


def simple_queue_pings() -> float:
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer() -> None:
        for _ in range(PINGS):
            back.put(there.get())

    def ask(item: int) -> None:
        there.put(item)
        back.get()

    return pings(answer, ask)


def channel_pings() -> float:
    there: ThreadChannel[int] = ThreadChannel(WINDOW)
    back: ThreadChannel[int] = ThreadChannel(WINDOW)

    def answer() -> None:
        for _ in range(PINGS):
            back.send(there.receive())
            there.done()

    def ask(item: int) -> None:
        there.send(item)
        back.receive()
        back.done()

    return pings(answer, ask)


def pings(answer: Callable[[], None], ask: Callable[[int], None]) -> float:
    thread = threading.Thread(target=answer)
    thread.start()
    began = perf_counter_ns()
    for item in range(PINGS):
        ask(item)
    spent = perf_counter_ns() - began
    thread.join()
    return spent / PINGS / 1_000


def stream(send: Callable[[], None], receive: Callable[[], None]) -> float:
    thread = threading.Thread(target=send)
    began = perf_counter_ns()
    thread.start()
    receive()
    spent = perf_counter_ns() - began
    thread.join()
    return spent / ITEMS / 1_000


def simple_queue_stream() -> float:
    line: queue.SimpleQueue[int] = queue.SimpleQueue()
    return stream(
        lambda: each(line.put),
        lambda: each(lambda _: line.get()),
    )


def bounded_queue_stream() -> float:
    line: queue.Queue[int] = queue.Queue(WINDOW)
    return stream(lambda: each(line.put), lambda: each(lambda _: line.get()))


def channel_single_stream() -> float:
    channel: ThreadChannel[int] = ThreadChannel(WINDOW)

    def receive() -> None:
        done = 0
        for _ in range(ITEMS):
            channel.receive_many(1, done=done)
            done = 1

    return stream(lambda: each(channel.send), receive)


def channel_stream() -> float:
    channel: ThreadChannel[int] = ThreadChannel(4 * WINDOW)

    def send() -> None:
        for start in range(0, ITEMS, BATCH):
            channel.send_many(range(start, min(ITEMS, start + BATCH)))

    def receive() -> None:
        got = done = 0
        while got < ITEMS:
            done = len(channel.receive_many(BATCH, done=done))
            got += done

    return stream(send, receive)


def each(call: Callable[[int], object]) -> None:
    for item in range(ITEMS):
        call(item)


def record_latency() -> float:
    record = LatencyHistogram().record
    began = perf_counter_ns()
    for value in range(1_000_000, 1_000_000 + ITEMS):
        record(value)
    return (perf_counter_ns() - began) / ITEMS / 1_000
