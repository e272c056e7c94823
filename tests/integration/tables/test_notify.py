"""A request is taken up and answered by event: no tick is waited for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.app.tables import Warehouse
from penstock.client import Client
from penstock.tables.notify import CONNECTIONS_MAX, Notifier, NotifierCall, notify_address
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api
from tests.integration.tables import node
from tests.integration.tables.place import Place

NAME = "\0penstock-test-notify"
NEVER_MS = 600_000
SLOW = {"parallel_refresh_mode": "off", "tick_ms": NEVER_MS, "lease_ms": 4 * NEVER_MS}
"""A coordinator that looks at the catalog by itself so seldom that no test lives to see it."""


@pytest.fixture
def place(places: Callable[..., Place], kind: str) -> Iterator[Place]:
    place = places(kind, **SLOW)
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
    process = node.start(place)
    try:
        place.until(lambda: is_there(place), "the coordinator")
        yield place
    finally:
        process.terminate()
        process.wait(60)


def is_there(place: Place) -> bool:
    with place.warehouse.notifier() as call:
        return call.is_open


def test_a_request_from_another_process_is_answered_though_no_tick_comes(place: Place) -> None:
    for number in range(2, 5):
        assert place.warehouse.refresh("a", wait_ms=60_000) == (True, "refreshed")
        place.write("raw", [number])
    request_id = place.warehouse.ask("a")
    place.until(lambda: place.warehouse.answer(request_id), "an answer that is not waited for")
    assert place.warehouse.drain(wait_ms=60_000)


def test_a_request_over_http_is_answered_though_no_tick_comes(place: Place, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, CATALOG=place.address, STORE="memory")
    try:
        api = Api(server.start().address)
        for number in range(2, 4):
            answer = api.request("POST", "/v0/tables/a/refresh", {"wait_ms": 60_000})
            assert (answer.status, answer.json["detail"]) == (200, "refreshed")
            place.write("raw", [number])
    finally:
        server.close()


def test_both_ends_notify_and_a_caller_that_left_is_forgotten() -> None:
    notifier = Notifier(NAME)
    try:
        with NotifierCall(NAME) as one, NotifierCall(NAME) as other:
            assert not notifier.receive(), "callers have come, and have not notified"
            one.notify()
            assert notifier.receive()
            assert not notifier.receive()
            notifier.notify()
            for call in (one, other):
                call.wait(60)
                assert call.is_open
        notifier.receive()
        notifier.notify()
        assert notifier._connections == set()
    finally:
        notifier.close()


def test_a_caller_polls_often_where_no_coordinator_can_notify() -> None:
    with NotifierCall(NAME) as alone:
        assert not alone.is_open
        alone.notify()
        alone.wait(0.001)
        patience_s = alone.patience_s
    notifier = Notifier(NAME)
    with NotifierCall(NAME) as call:
        assert call.patience_s > patience_s
        notifier.receive()
        notifier.close()
        call.wait(60)
        assert not call.is_open
        assert call.patience_s == patience_s


def test_an_address_that_another_has_is_taken_when_it_is_free() -> None:
    first, second = Notifier(NAME), Notifier(NAME)
    assert not second.open()
    first.close()
    assert second.open()
    second.close()


def test_more_connections_than_there_are_places_for_are_not_kept() -> None:
    notifier = Notifier(NAME)
    calls = [NotifierCall(NAME) for _ in range(CONNECTIONS_MAX)]
    try:
        for _ in calls:
            notifier.receive()
        with NotifierCall(NAME) as late:
            notifier.receive()
            late.wait(60)
            assert not late.is_open
    finally:
        for call in calls:
            call.close()
        notifier.close()


def test_a_copy_of_a_lake_has_an_address_of_its_own(places: Callable[..., Place]) -> None:
    place = places()
    path = Path(place.address.removeprefix("sqlite:"))
    copy = path.with_name("copy.sqlite")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    for connection in (source, target):
        connection.close()
    with Warehouse.open(f"sqlite:{copy}", place.data_path) as copied:
        assert copied._store.warehouse == place.warehouse._store.warehouse
        assert notify_address(copied._store) != notify_address(place.warehouse._store)


def test_a_commit_to_the_lake_is_followed_though_no_tick_comes(place: Place) -> None:
    """The coordinator is another process; this one only commits, and notifies nobody else."""
    place.warehouse.create("b", "SELECT id FROM raw", schedule="20ms")
    place.until(lambda: "b" in place.frontiers())
    for number in range(2, 7):
        place.write("raw", [number])
        place.until(lambda: (number,) in place.rows("b"), "the commit to be noticed")  # noqa: B023


def test_a_record_in_a_topic_is_followed_though_no_tick_and_no_poll_comes(
    places: Callable[..., Place], tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path)
    slow = {**SLOW, "topics_poll_ms": NEVER_MS}
    try:
        with Client(server.start().address.url) as topics:
            place = places("sqlite", **slow)
            topics.write("readings", [{"id": 0}], create=True)
            place.warehouse.declare_topic("readings", "id BIGINT", url=topics.settings.url)
            place.warehouse.create("a", "SELECT id FROM topics.readings", schedule="20ms")
            with place.warehouse.coordinator():
                place.until(lambda: "a" in place.frontiers())
                for number in range(1, 6):
                    topics.write("readings", [{"id": number}])
                    place.until(lambda: (number,) in place.rows("a"), "the record")  # noqa: B023
    finally:
        server.close()
