"""Callers of little patience: their deadline holds whatever the server does; nothing is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager
from time import monotonic

import pytest

from penstock.client import AsyncClient, Client, Records
from penstock.client.errors import ClientClosed
from penstock.client.transports import blocking as blocking_transport
from tests.unit.client.log_server import LogServer, wanted
from tests.unit.client.scripted import (
    DEADLINE_S,
    HANG,
    STREAM_HEAD,
    chunk,
    frame,
    in_turn,
    quick,
    scripted,
)
from tests.waiting import until

SOON_S = DEADLINE_S / 3
"""Far more than a busy machine needs, far less than the client gives a silent server."""
JOB = frame("job", {
    "topic": "q", "$seq": 1, "lease_id": "lease_1", "deadline": 99, "$ts": 1, "deliveries": 1,
    "data": {},
})  # fmt: skip


class Asked:
    """One watch or work stream of either face, asked with a deadline by a test that does not wait.

    The async one has a loop of its own, which runs only while it is asked, as in a notebook.
    """

    def __init__(self, stream, run, pause):
        self.stream = stream
        self._run = run
        self._pause = pause

    def next(self, timeout_s):
        name = "next_event" if hasattr(self.stream, "next_event") else "next_job"
        return self._run(getattr(self.stream, name), timeout_s)

    def close(self):
        self._run(getattr(self.stream, "aclose", None) or self.stream.close)

    def until(self, event):
        """Wait for what the server notices."""
        end_s = monotonic() + SOON_S
        while not event.is_set() and monotonic() < end_s:
            self._run(self._pause, 0.001)
        return event.is_set()


@contextmanager
def blocking(settings, kind):
    with Client(settings) as client:
        stream = client.watch("a") if kind == "watch" else client.work("q", "me", lease_ms=60_000)
        yield Asked(stream, lambda call, *args: call(*args), threading.Event().wait)


@contextmanager
def on_a_loop(settings, kind):
    with asyncio.Runner() as runner:
        client = AsyncClient(settings)
        stream = client.watch("a") if kind == "watch" else client.work("q", "me", lease_ms=60_000)
        yield Asked(stream, lambda call, *args: runner.run(call(*args)), asyncio.sleep)
        runner.run(client.aclose())


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "async"])
def asked(request):
    return request.param


def test_a_session_that_is_not_made_in_time_is_not_waited_for(asked):
    with scripted(in_turn([HANG])) as server, asked(quick(server.url), "watch") as watch:
        began_s = monotonic()
        assert watch.next(0.05) is None
        assert watch.next(0) is None
        assert monotonic() - began_s < SOON_S
        assert (watch.stream.trouble, watch.stream.reconnects) == (None, 0)


@pytest.mark.parametrize("kind", ["watch", "work"])
def test_a_stream_that_does_not_open_in_time_is_not_waited_for(asked, kind):
    model = LogServer({"a": 1}, [])

    def answer(seen):
        return model(seen) if seen.method == "POST" else [HANG]

    with scripted(answer) as server, asked(quick(server.url), kind) as stream:
        began_s = monotonic()
        while not any(seen.method == "GET" for seen in server.seen):
            assert stream.next(0.05) is None
            assert monotonic() - began_s < SOON_S
        assert stream.next(0.05) is None
        assert monotonic() - began_s < SOON_S
        assert stream.stream.trouble is None


@pytest.mark.parametrize("timeout_s", [0, 0.0005, 0.02])
def test_a_watch_that_is_always_cut_short_asks_once_and_gets_everything(asked, timeout_s):
    model = LogServer({"a": 9}, [], batch=1)
    asks = {"POST": 0, "GET": 0}
    gates = {"POST": threading.Event(), "GET": threading.Event()}

    def answer(seen):
        gates[seen.method].wait(DEADLINE_S)
        return model(seen)

    with scripted(answer) as server, asked(quick(server.url), "watch") as watch:
        found = []
        end_s = monotonic() + DEADLINE_S
        while len(found) < 9 and monotonic() < end_s:
            event = watch.next(timeout_s)
            if isinstance(event, Records):
                found += [record.data for record in event.records]
            for seen in server.seen[sum(asks.values()) :]:
                asks[seen.method] += 1
                assert watch.next(timeout_s) is None
                gates[seen.method].set()
        assert found == wanted({"a": 9})["a"]
        assert watch.stream.reconnects == 0
    assert asks == {"POST": 1, "GET": 1}


def test_a_work_stream_that_is_always_cut_short_is_opened_once(asked):
    gate = threading.Event()

    def answer(_):
        gate.wait(DEADLINE_S)
        return [STREAM_HEAD, chunk(JOB), HANG]

    with scripted(answer) as server, asked(quick(server.url), "work") as work:
        end_s = monotonic() + DEADLINE_S
        while not server.seen and monotonic() < end_s:
            assert work.next(0.001) is None
        gate.set()
        job = None
        while job is None and monotonic() < end_s:
            job = work.next(0.001)
        assert job.seq == 1
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["watch", "work"])
def test_a_stream_that_opens_after_its_watch_was_ended_is_closed(asked, kind):
    model = LogServer({"a": 1}, [])
    gate, closed = threading.Event(), threading.Event()

    def stream():
        gate.wait(DEADLINE_S)
        try:
            yield STREAM_HEAD
            while True:
                yield chunk(b": hb\n\n" * 10_000)
        finally:
            closed.set()

    def answer(seen):
        return model(seen) if seen.method == "POST" else stream()

    with scripted(answer) as server, asked(quick(server.url), kind) as watch:
        end_s = monotonic() + DEADLINE_S
        while not any(seen.method == "GET" for seen in server.seen) and monotonic() < end_s:
            assert watch.next(0.01) is None
        watch.close()
        gate.set()
        assert watch.until(closed)
        assert watch.next(1) is None


def test_a_watch_that_was_cut_short_goes_on_in_a_forked_child():
    model = LogServer({"a": 2}, [])
    answers = in_turn([HANG], "as the model does")

    def answer(seen):
        given = answers(seen)
        return model(seen) if isinstance(given, str) else given

    with scripted(answer) as server, Client(quick(server.url)) as client:
        watch = client.watch("a")
        end_s = monotonic() + DEADLINE_S
        while not server.seen and monotonic() < end_s:
            assert watch.next_event(0.01) is None
        child = os.fork()
        if child == 0:
            event = watch.next_event(DEADLINE_S)
            os._exit(7 if event is not None and event.to_seq == 2 else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7


def test_an_async_watch_that_was_cut_short_goes_on_in_another_loop():
    model = LogServer({"a": 2}, [])
    answers = in_turn([HANG], "as the model does")

    def answer(seen):
        given = answers(seen)
        return model(seen) if isinstance(given, str) else given

    async def cut_short(watch, server):
        while not server.seen:
            assert await watch.next_event(0.01) is None

    async def go_on(client, watch):
        async with client:
            assert (await watch.next_event(DEADLINE_S)).to_seq == 2

    with scripted(answer) as server:
        client = AsyncClient(quick(server.url))
        watch = client.watch("a")
        asyncio.run(cut_short(watch, server))
        asyncio.run(go_on(client, watch))


@pytest.mark.parametrize("kind", ["watch", "work"])
def test_closing_a_client_ends_a_stream_that_another_thread_opens(kind):
    model = LogServer({"a": 1}, [])
    errors = []

    def answer(seen):
        return model(seen) if seen.method == "POST" else [HANG]

    def read(stream):
        try:
            next(stream)
        except ClientClosed as error:
            errors.append(error)

    with scripted(answer) as server:
        client = Client(quick(server.url))
        stream = client.watch("a") if kind == "watch" else client.work("q", "me", lease_ms=60_000)
        thread = threading.Thread(target=read, args=[stream])
        thread.start()
        while not any(seen.method == "GET" for seen in server.seen):
            thread.join(0.001)
        client.close()
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert len(errors) == 1


@pytest.mark.parametrize("method", ["health", "work"])
def test_a_connection_that_is_made_while_the_client_is_closed_is_not_used(method, monkeypatch):
    connect = blocking_transport.socket.create_connection

    def connect_late(*args, **options):
        made = connect(*args, **options)
        client.close()
        return made

    with scripted(in_turn([HANG])) as server:
        client = Client(quick(server.url))
        monkeypatch.setattr(blocking_transport.socket, "create_connection", connect_late)
        with pytest.raises(ClientClosed):
            client.health() if method == "health" else next(client.work("q", "me", lease_ms=60_000))
    assert server.seen == []


@pytest.mark.parametrize("method", ["health", "work"])
def test_a_connection_that_is_made_while_the_async_client_is_closed_is_not_used(method):
    async def run(settings):
        client = AsyncClient(settings)
        call = (
            client.health()
            if method == "health"
            else anext(client.work("q", "me", lease_ms=60_000))
        )
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(ClientClosed):
            await task

    with scripted(in_turn([HANG])) as server:
        asyncio.run(run(quick(server.url)))
    assert server.seen == []


def test_an_async_watch_cancelled_while_its_stream_is_opened_loses_nothing():
    model = LogServer({"a": 2}, [])
    gate = threading.Event()

    def answer(seen):
        if seen.method == "GET":
            gate.wait(DEADLINE_S)
        return model(seen)

    async def run(server):
        async with AsyncClient(quick(server.url)) as client, client.watch("a") as watch:
            task = asyncio.ensure_future(anext(watch))
            await until(lambda: any(seen.method == "GET" for seen in server.seen), "the request")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            event = await watch.next_event(DEADLINE_S)
            assert [record.data for record in event.records] == wanted({"a": 2})["a"]
            assert watch.reconnects == 0

    with scripted(answer) as server:
        asyncio.run(run(server))
    assert [seen.method for seen in server.seen] == ["POST", "GET"], "it was asked once"


@pytest.mark.parametrize("kind", ["watch", "work"])
@pytest.mark.parametrize("hangs_at", ["POST", "GET"])
def test_closing_a_stream_ends_whoever_waits_for_it_to_be_opened(kind, hangs_at):
    model = LogServer({"a": 1}, [])

    def answer(seen):
        return [HANG] if kind == "work" or seen.method == hangs_at else model(seen)

    with scripted(answer) as server, Client(quick(server.url)) as client:
        stream = client.watch("a") if kind == "watch" else client.work("q", "me", lease_ms=60_000)
        found = []
        thread = threading.Thread(target=lambda: found.extend(stream))
        thread.start()
        method = "GET" if kind == "work" else hangs_at
        while not any(seen.method == method for seen in server.seen):
            thread.join(0.001)
        stream.close()
        thread.join(SOON_S)
        assert not thread.is_alive()
        assert found == []
