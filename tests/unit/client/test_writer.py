"""Writers: many sends become few requests, in order, once, with bounded memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from penstock.client import AsyncClient, Client, Record
from penstock.client.errors import ClientClosed, TimedOut
from penstock.protocol.errors import CallError, OutcomeUnknown, TopicFull
from tests.unit.client.scripted import CUT, HANG, WRITTEN, answered, failed, quick, scripted


class Sink:
    """A topic that keeps what lands, once for each key; misbehaves where told to."""

    def __init__(self, *misdeeds):
        self.landed = []
        self.batches = []
        self._keys = set()
        self._misdeeds = list(misdeeds)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, seen):
        self.gate.wait(20)
        body = seen.json()
        misdeed = self._misdeeds.pop(0) if self._misdeeds else None
        if misdeed is not None and misdeed != "lose the answer":
            return misdeed
        if body["idempotency_key"] not in self._keys:
            self._keys.add(body["idempotency_key"])
            self.batches.append(len(body["records"]))
            self.landed += [record["data"] for record in body["records"]]
        if misdeed:
            return [CUT]
        return answered(200, WRITTEN | {"count": len(body["records"]), "seqs": None})


TROUBLE = ("lose the answer", failed(429, "throttled", "Retry-After: 0"), "lose the answer", [CUT])


def write_blocking(settings, items, **options):
    with Client(settings) as client, client.writer("a", **options) as writer:
        for item in items:
            writer.send(item)
    return writer


def write_async(settings, items, **options):
    async def run():
        async with AsyncClient(settings) as client, client.writer("a", **options) as writer:
            for item in items:
                await writer.send(item)
        return writer

    return asyncio.run(run())


@pytest.fixture(params=[write_blocking, write_async], ids=["blocking", "async"])
def write(request):
    return request.param


def test_everything_lands_in_order_and_in_few_requests(write):
    sink = Sink()
    with scripted(sink) as server:
        writer = write(quick(server.url), range(2_500), batch_max=500, linger_ms=50)
    assert sink.landed == list(range(2_500))
    assert (writer.sent, writer.acked, writer.unacked()) == (2_500, 2_500, [])
    assert max(sink.batches) <= 500
    assert len(sink.batches) < 250


def test_lost_answers_and_refusals_lose_and_double_nothing(write):
    sink = Sink(*TROUBLE)
    with scripted(sink) as server:
        write(quick(server.url), range(300), batch_max=50)
    assert sink.landed == list(range(300))


def test_batches_are_bounded_in_bytes_too(write):
    sink = Sink()
    with scripted(sink) as server:
        write(quick(server.url), ["x" * 100] * 30, batch_bytes_max=500, linger_ms=50)
    assert len(sink.landed) == 30
    assert max(sink.batches) <= 4


def test_a_record_is_taken_as_it_was_when_it_was_sent(write):
    sink = Sink()
    data = {"n": 1}

    def changing():
        yield data
        data["n"] = 2
        yield Record(data, tag="t")

    with scripted(sink) as server:
        write(quick(server.url), changing())
    assert sink.landed == [{"n": 1}, {"n": 2}]


def test_a_batch_that_fails_for_good_ends_the_writer_and_names_what_is_not_written(write):
    sink = Sink(None, failed(422, "topic_full"))
    with scripted(sink) as server, pytest.raises(TopicFull):
        write(quick(server.url), range(1_000), batch_max=10)
    assert sink.landed == list(range(10))


def test_a_lone_record_leaves_after_the_linger():
    sink = Sink()
    with scripted(sink) as server, Client(quick(server.url)) as client:
        arrived = threading.Event()
        writer = client.writer("a", linger_ms=1, on_written=lambda _: arrived.set())
        writer.send(7)
        assert arrived.wait(20)
        assert writer.acked == 1
        writer.close()
    assert sink.landed == [7]


def test_a_flush_does_not_wait_for_company():
    async def flush(url):
        async with (
            AsyncClient(quick(url)) as client,
            client.writer("a", linger_ms=60_000) as writer,
        ):
            for n in range(3):
                await writer.send(n)
                async with asyncio.timeout(20):
                    await writer.flush()

    sink = Sink()
    with scripted(sink) as server:
        asyncio.run(flush(server.url))
        with Client(quick(server.url)) as client:
            writer = client.writer("a", linger_ms=60_000)
            writer.send(3)
            writer.flush(20)
            writer.close()
    assert sink.batches == [1, 1, 1, 1]


def test_a_flush_takes_a_batch_that_waits_behind_another_with_it():
    async def run(url):
        async with (
            AsyncClient(quick(url)) as client,
            client.writer("a", linger_ms=60_000) as writer,
        ):
            await writer.send(1)
            first = asyncio.create_task(writer.flush())
            while not server.seen:
                await asyncio.sleep(0)
            await writer.send(2)
            second = asyncio.create_task(writer.flush())
            await asyncio.sleep(0)
            sink.gate.set()
            async with asyncio.timeout(20):
                await asyncio.gather(first, second)

    sink = Sink()
    sink.gate.clear()
    with scripted(sink) as server:
        asyncio.run(run(server.url))
    assert sink.batches == [1, 1]


def test_senders_wait_when_memory_is_full():
    sink = Sink()
    sink.gate.clear()
    with scripted(sink) as server, Client(quick(server.url)) as client:
        writer = client.writer("a", batch_max=10, waiting_bytes_max=1_000)
        done = threading.Event()

        def send_all():
            for n in range(500):
                writer.send(n)
            done.set()

        thread = threading.Thread(target=send_all)
        thread.start()
        while writer.sent < 50:
            thread.join(0.001)
        assert not done.is_set()
        assert sum(len(record.data) for record in writer.unacked()) <= 1_000
        sink.gate.set()
        thread.join(20)
        writer.close()
    assert sink.landed == list(range(500))


def test_what_a_failed_writer_did_not_write_can_be_taken_back():
    sink = Sink(None, failed(422, "topic_full"))
    with scripted(sink) as server, Client(quick(server.url)) as client:
        writer = client.writer("a", batch_max=2, linger_ms=50)
        for n in range(5):
            writer.send(n)
        with pytest.raises(TopicFull):
            writer.flush()
        assert [bytes(record.data) for record in writer.unacked()] == [b"2", b"3", b"4"]
        with pytest.raises(TopicFull):
            writer.send(6)
        with pytest.raises(TopicFull):
            writer.close()


def test_an_answer_that_never_comes_is_told_with_the_key():
    with scripted(lambda _: [CUT]) as server, Client(quick(server.url, tries_max=2)) as client:
        writer = client.writer("a")
        writer.send(1)
        with pytest.raises(OutcomeUnknown) as caught:
            writer.flush()
        assert caught.value.idempotency_key == server.seen[0].json()["idempotency_key"]
        with pytest.raises(OutcomeUnknown):
            writer.close()


def test_a_flush_can_be_given_a_limit():
    with (
        scripted(lambda _: [HANG]) as server,
        Client(quick(server.url, tries_max=1, read_timeout_s=0.2)) as client,
    ):
        writer = client.writer("a")
        writer.send(1)
        with pytest.raises(TimedOut, match=r"within 0\.01 s"):
            writer.flush(0.01)
        with pytest.raises(OutcomeUnknown):
            writer.close()


def test_an_error_in_the_callback_is_not_swallowed(write):
    def bad(_):
        raise ZeroDivisionError

    with scripted(Sink()) as server, pytest.raises(Exception, match="ZeroDivisionError"):
        write(quick(server.url), range(100), batch_max=10, on_written=bad)


def test_a_writer_that_its_callback_ended_knows_what_was_written():
    def bad(_):
        raise ZeroDivisionError

    sink = Sink()
    with scripted(sink) as server, Client(quick(server.url)) as client:
        writer = client.writer("a", linger_ms=0, on_written=bad)
        writer.send(1)
        with pytest.raises(CallError, match="ZeroDivisionError"):
            writer.close()
    assert (writer.acked, writer.unacked(), sink.landed) == (1, [], [1])


def test_a_closed_writer_takes_nothing():
    with scripted(Sink()) as server, Client(quick(server.url)) as client:
        writer = client.writer("a")
        writer.close()
        with pytest.raises(ClientClosed):
            writer.send(1)


def test_a_cancelled_async_writer_says_so():
    async def run(url):
        async with AsyncClient(quick(url)) as client:
            writer = client.writer("a", linger_ms=0)
            await writer.send(1)
            await asyncio.sleep(0)
            writer._pump.drop()
            with pytest.raises(OutcomeUnknown):
                await writer.flush()

    with scripted(lambda _: [HANG]) as server:
        asyncio.run(run(server.url))


def test_a_writer_does_not_survive_a_fork():
    with (
        scripted(Sink()) as server,
        Client(quick(server.url)) as client,
        client.writer("a") as writer,
    ):
        child = os.fork()
        if child == 0:
            try:
                with suppress(ClientClosed):
                    writer.send(1)
                    os._exit(2)
                writer.flush()
            except ClientClosed:
                os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7


def test_records_of_a_program_that_forgets_to_close_its_writer_land_at_its_end(tmp_path):
    sink = Sink()
    with scripted(sink) as server:
        code = (
            "from penstock.client import Client\n"
            f"writer = Client({server.url!r}).writer('a', linger_ms=60_000)\n"
            "for n in range(100): writer.send(n)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=30, capture_output=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert sink.landed == list(range(100))
