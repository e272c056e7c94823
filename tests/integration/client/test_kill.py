"""A server killed by SIGKILL and started again, under a writer and watches: every record once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.client import AsyncClient, Client, ClientSettings, LeftOut, Records
from penstock.flow.backoff import Backoff
from penstock.testing import seeded, seeds
from tests.conformance.servers import ServerProcess
from tests.waiting import wait_until

RECORDS = 3_000
KILLS = 4
LIMIT_S = 90.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServerProcess(tmp_path, PORT=port)
    try:
        yield process.start()
    finally:
        process.close()


def settings_of(server: ServerProcess) -> ClientSettings:
    address = server.address
    return ClientSettings(
        f"http://{address.host}:{address.port}",
        timeout_s=LIMIT_S,
        reconnect=Backoff(base_ms=10, cap_ms=200, jitter=0.5, window_ms=LIMIT_S * 1_000),
    )


class Watching:
    """A watch in a thread that keeps what it was given."""

    def __init__(self, settings: ClientSettings, asynchronous: bool) -> None:
        self.found: list[int] = []
        self.reconnects = 0
        self.error: BaseException | None = None
        self._settings = settings
        run = self._run_async if asynchronous else self._run
        self._thread = threading.Thread(target=self._guard, args=(run,))
        self._thread.start()

    def result(self) -> list[int]:
        self._thread.join(LIMIT_S)
        if self.error is not None:
            raise self.error
        return self.found

    def _guard(self, run) -> None:
        try:
            run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        with Client(self._settings) as client, client.watch("a") as watch:
            while len(self.found) < RECORDS:
                self._keep(watch.next_event(LIMIT_S), watch)

    def _run_async(self) -> None:
        async def run() -> None:
            async with AsyncClient(self._settings) as client, client.watch("a") as watch:
                while len(self.found) < RECORDS:
                    self._keep(await watch.next_event(LIMIT_S), watch)

        asyncio.run(run())

    def _keep(self, event, watch) -> None:
        assert event is not None, "nothing came in time"
        self.reconnects = watch.reconnects
        if isinstance(event, Records):
            self.found += [record.data for record in event.records]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_whatever_a_writer_sends_lands_once_and_every_watch_sees_it_once(server, durability):
    seed = seeds(1)[0]
    settings = settings_of(server)
    with seeded(seed) as random, Client(settings) as client:
        client.put_topic("a", durability=durability)
        watches = [Watching(settings, asynchronous) for asynchronous in (False, True)]
        kills = sorted(random.sample(range(50, RECORDS - 200), KILLS))
        with client.writer("a", batch_max=20, linger_ms=1) as writer:
            sent = threading.Thread(target=lambda: [writer.send(n) for n in range(RECORDS)])
            sent.start()
            for acknowledged in kills:
                wait_until(lambda least=acknowledged: writer.acked >= least)
                server.kill()
                server.start()
            sent.join(LIMIT_S)
        expected = list(range(RECORDS))
        stored = [record.data for page in client.read("a") for record in page.records]
        assert stored == expected
        for watch in watches:
            assert watch.result() == expected
            assert watch.reconnects >= 1


def test_a_server_that_is_asked_to_end_hands_its_watches_over_to_the_next(server):
    settings = settings_of(server)
    with Client(settings) as client, client.watch("a", lenient=True, prefixes=["a"]) as watch:
        found = []
        for life in range(3):
            client.write("a", [life])
            while len(found) <= life:
                event = watch.next_event(LIMIT_S)
                if isinstance(event, Records):
                    found += [record.data for record in event.records]
            server.terminate()
            assert server.wait() == 0
            server.start()
        assert found == [0, 1, 2]


def test_jobs_of_a_killed_server_are_all_done(server):
    settings = settings_of(server)
    with Client(settings) as client:
        client.put_topic("q", type="queue", durability="fsync")
        client.write("q", range(40))
        done: set[int] = set()
        killed = False
        with client.work("q", "me", count=5) as work:
            for job in work:
                if len(done) >= 20 and not killed:
                    killed = True
                    server.kill()
                    server.start()
                if job.ack():
                    done.add(job.data)
                if len(done) == 40:
                    break
        assert client.get_topic("q").count == 0


def test_a_watch_of_too_many_topics_keeps_what_it_has_and_gets_the_rest_later(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = ServerProcess(tmp_path, PORT=port, MAX_WATCH_TOPICS=3).start()
    try:
        with Client(settings_of(server)) as client, client.watch(prefixes=["p"]) as watch:
            found: list[int] = []
            left: list[str] = []

            def listen(enough: Callable[[], bool]) -> None:
                while not enough():
                    event = watch.next_event(LIMIT_S)
                    if isinstance(event, Records):
                        found.extend(record.data for record in event.records)
                    elif isinstance(event, LeftOut):
                        left.extend(event.topics)

            for number in range(5):
                client.write(f"p{number}", [number])
            listen(lambda: sorted(found) == [0, 1, 2] and left == ["p3", "p4"])
            server.kill()
            server.start()
            client.write("p0", ["after"])
            listen(lambda: "after" in found)
            assert watch.reconnects == 1
            client.delete_topic("p0")
            listen(lambda: 3 in found)
            client.delete_topic("p1")
            listen(lambda: 4 in found)
            assert sorted(map(str, found)) == ["0", "1", "2", "3", "4", "after"]
    finally:
        server.close()
