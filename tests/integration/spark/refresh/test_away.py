"""A Spark that somebody else runs goes away and comes back: no table is suspended for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from penstock.spark.errors import SparkNotStarted
from penstock.spark.link import close, new_session
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import Status
from tests.integration.spark.one import one_spark
from tests.integration.spark.refresh.place import SparkPlace

SLOW = "SELECT sum(r.id % 7) AS n FROM raw, range(0, 3000000000, 1, 2) AS r"
"""Some seconds, so that Spark can be lost under it."""


class Bridge:
    """A port that leads to another one, and that can be closed and opened again."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._ends: list[socket.socket] = []
        self.port = 0
        self.open()

    def open(self) -> None:
        self._is_closed = False
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, args=(self._door,))
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        for end in (self._door, *self._ends):
            _shut(end)
        self._thread.join()
        self._ends.clear()

    def _accept(self, door: socket.socket) -> None:
        carriers = []
        with door, suppress(OSError):
            while True:
                here, _ = door.accept()
                there = socket.create_connection(self._to)
                self._ends += [here, there]
                for way in ((here, there), (there, here)):
                    carriers.append(threading.Thread(target=_carry, args=way))
                    carriers[-1].start()
                if self._is_closed:  # it was closed while this connection was made
                    _shut(here)
        for carrier in carriers:
            carrier.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        _shut(end)
    source.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    found = urlsplit(one_spark().url)
    assert found.hostname is not None
    assert found.port is not None
    made = Bridge(found.hostname, found.port)
    yield made
    made.close()


@pytest.mark.slow
def test_a_spark_that_goes_away_is_waited_for(
    places: Callable[..., SparkPlace], bridge: Bridge
) -> None:
    url = one_spark().url
    place = places(
        remote=url.replace(urlsplit(url).netloc, f"localhost:{bridge.port}"),
        retry=FailurePolicy(base_ms=400, cap_ms=800),
    )
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="20ms")
    warehouse.create("below", "SELECT count(*) AS n FROM a", schedule="20ms")
    with warehouse.coordinator():
        place.until(place.fresh, "both tables")
        bridge.close()
        place.write("raw", [2])
        place.until(lambda: tries(place) >= 4, "more tries than failures suspend")
        place.until(lambda: warehouse.why("a").reason.value == "engine_away", "the reason")
        assert "no Spark answers at sc://localhost" in warehouse.why("a").text
        assert warehouse.table("a").status.value == "ACTIVE"
        bridge.open()
        place.until(place.fresh, "both to catch up by themselves")
    place.check_contents()
    assert {job.status.value for job in warehouse.jobs()} == {"SUCCEEDED", "CANCELLED"}
    assert {record.outcome.value for record in warehouse.history()} == {"succeeded"}


@pytest.mark.slow
def test_a_query_under_which_spark_is_lost_each_time_is_suspended(
    places: Callable[..., SparkPlace], bridge: Bridge
) -> None:
    url = one_spark().url
    place = places(
        remote=url.replace(urlsplit(url).netloc, f"localhost:{bridge.port}"),
        retry=FailurePolicy(base_ms=20, cap_ms=200),
    )
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("slow", SLOW, schedule="20ms")

    def job() -> RefreshJob | None:
        return next((job for job in warehouse.jobs() if job.status is JobStatus.RUNNING), None)

    with warehouse.coordinator():
        while warehouse.table("slow").status is Status.ACTIVE:
            place.until(lambda: job() or warehouse.table("slow").status is not Status.ACTIVE)
            bridge.close()
            place.until(lambda: job() is None, "the loss to be noticed")
            bridge.open()
        assert warehouse.table("slow").status is Status.SUSPENDED
        text = "3 failures in a row, the last: Spark was lost during the refresh"
        place.until(lambda: text in warehouse.why("slow").text, "the reason")
    assert warehouse.history() == []


def test_a_spark_that_was_away_for_long_is_found_at_the_first_try(bridge: Bridge) -> None:
    """gRPC waits longer and longer before it connects again, for all who call one address."""
    url = one_spark().url
    url = url.replace(urlsplit(url).netloc, f"localhost:{bridge.port}")
    close(new_session(url))
    bridge.close()
    for _ in range(8):
        with pytest.raises(
            SparkNotStarted, match=r"no Spark answers .* failed to connect to all addresses"
        ):
            new_session(url, retries_max=1)
    bridge.open()
    close(new_session(url, retries_max=0))


def tries(place: SparkPlace) -> int:
    return sum("no Spark answers at sc://localhost" in (job.outcome_detail or "") for job in
               place.warehouse.jobs())  # fmt: skip
