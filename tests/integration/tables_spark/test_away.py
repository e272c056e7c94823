"""A Spark that somebody else runs goes away and comes back: no table is suspended for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.spark.one import one_spark
from tests.integration.tables_spark.place import SparkPlace


class Bridge:
    """A port that leads to another one, and that can be closed and opened again."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        self._do(self._open())

    def shut(self) -> None:
        self._do(self._shut())

    def close(self) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection(*self._to)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._tasks.discard(task)
            for end in (writer, back):
                end.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    found = urlsplit(one_spark().url)
    assert found.hostname is not None
    assert found.port is not None
    made = Bridge(found.hostname, found.port)
    yield made
    made.close()


def test_a_spark_that_goes_away_is_waited_for(
    places: Callable[..., SparkPlace], bridge: Bridge
) -> None:
    url = one_spark().url
    place = places(remote=url.replace(urlsplit(url).netloc, f"localhost:{bridge.port}"))
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="20ms")
    warehouse.create("below", "SELECT count(*) AS n FROM a", schedule="20ms")
    with warehouse.coordinator():
        place.until(place.fresh, "both tables")
        bridge.shut()
        place.write("raw", [2])
        place.until(lambda: tries(place) > 3, "more tries than a failure has")
        place.until(lambda: warehouse.why("a").reason.value == "engine_away", "the reason")
        assert "expected a Spark at sc://localhost" in warehouse.why("a").text
        assert warehouse.table("a").status.value == "ACTIVE"
        bridge.open()
        place.until(place.fresh, "both to catch up by themselves")
    place.check_contents()


def tries(place: SparkPlace) -> int:
    return sum(job.root == "a" and job.status.value == "RETRYABLE_FAILED" for job in
               place.warehouse.jobs())  # fmt: skip
