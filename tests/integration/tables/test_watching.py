"""Watching a table through a server: rows at a snapshot, then changes, without gap or overlap."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.client import AsyncClient, Client
from penstock.client.blocking.watch import TableWatch
from penstock.lake.expire import expire
from penstock.protocol.errors import InvalidRequest, NoContents, TableNotFound
from penstock.protocol.events import TableCaughtUp, TableChanges, TableEvent, TableReset, TableRows
from penstock.server.push import tables as pushed
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api
from tests.integration.lake.duck import Duck
from tests.integration.tables.place import Place

COUNTS = "SELECT id % 3 AS k, count(*) AS n FROM raw GROUP BY id % 3"
PATIENCE_S = 20.0
Bag = Counter[tuple[Any, ...]]


@pytest.fixture
def serial(places: Callable[..., Place]) -> Place:
    return places("sqlite", parallel_refresh_mode="off", delta=True)


@pytest.fixture
def server(serial: Place, tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path, CATALOG=serial.address, STORE="memory")
    try:
        yield process.start()
    finally:
        process.close()


class Reader:
    """What a program makes of the events: the table's rows, and every snapshot it was told."""

    def __init__(self) -> None:
        self.rows: Bag = Counter()
        self.snapshots: list[int] = []
        self.resets: list[str] = []
        self.caught_up = -1

    def take(self, event: TableEvent) -> None:
        match event:
            case TableRows():
                if not event.offset:
                    self.rows.clear()
                self.rows.update(tuple(row.values()) for row in event.rows)
            case TableChanges():
                assert not self.snapshots or event.snapshot > self.snapshots[-1]
                self.snapshots.append(event.snapshot)
                for change in event.changes:
                    self.rows[tuple(change.row.values())] += change.weight
                assert min(self.rows.values(), default=0) >= 0
                self.rows = +self.rows
            case TableReset():
                self.resets.append(event.reason)
            case TableCaughtUp():
                self.caught_up = event.snapshot

    def until(self, watch: TableWatch, condition: Callable[[], bool]) -> None:
        while not condition():
            event = watch.next_event(PATIENCE_S)
            assert event is not None, "waited in vain"
            self.take(event)


def test_a_watcher_has_the_rows_and_then_every_change(serial: Place, server: ServerProcess) -> None:
    warehouse = serial.warehouse
    serial.write("raw", range(10))
    warehouse.create("counts", COUNTS, schedule="20ms")
    assert warehouse.refresh("counts", here=True).ok
    reader = Reader()
    with (
        warehouse.coordinator(),
        Client(server.address.url) as client,
        client.tables.watch("counts") as watch,
    ):
        reader.until(watch, lambda: reader.caught_up >= 0)
        assert reader.rows == {(0, 4): 1, (1, 3): 1, (2, 3): 1}
        for number in range(10, 15):
            serial.write("raw", [number])
            serial.until(serial.fresh)
            reader.until(watch, lambda: reader.rows == serial.rows("counts"))
        last: list[TableEvent] = []
        serial.write("raw", [15])
        while not last:
            event = watch.next_event(PATIENCE_S)
            assert event is not None
            reader.take(event)
            last += [event] if isinstance(event, TableChanges) else []
    (change,) = last
    assert isinstance(change, TableChanges)
    assert [c.weight for c in change.changes] == [-1, 1]
    assert [c.key for c in change.changes] == [{"k": 0}, {"k": 0}]
    assert change.frontier == {"raw": [serial.frontiers()["counts"][0]["raw"].snapshot]}
    assert len(reader.snapshots) == 6
    assert reader.resets == []


@pytest.mark.slow
def test_a_watcher_loses_and_repeats_nothing_across_a_server_that_is_killed(
    serial: Place, server: ServerProcess, tmp_path: Path
) -> None:
    """Changes are written all the while; the server is killed and comes back, three times."""
    warehouse = serial.warehouse
    serial.write("raw", range(2_500))
    warehouse.create("copy", "SELECT id FROM raw", schedule="20ms")
    assert warehouse.refresh("copy", here=True).ok
    reader = Reader()
    server.stay()
    stop = threading.Event()

    def keep_writing() -> None:
        number = 10_000
        while not stop.is_set():
            serial.write("raw", [number])
            number += 1
            stop.wait(0.05)

    writer = threading.Thread(target=keep_writing)
    with (
        Client(server.address.url) as client,
        client.tables.watch("copy") as watch,
        warehouse.coordinator(),
    ):
        writer.start()
        try:
            for restarts in range(1, 4):
                seen = len(reader.snapshots)
                reader.until(watch, lambda: len(reader.snapshots) >= seen + 3)  # noqa: B023
                server.kill()
                server.start()
                reader.until(watch, lambda: watch.reconnects >= restarts)  # noqa: B023
        finally:
            stop.set()
            writer.join()
        serial.until(serial.fresh)
        reader.until(watch, lambda: reader.rows == serial.rows("copy"))
    assert reader.resets == []
    assert len(reader.rows) > 2_500


def test_a_position_is_resumed_and_one_that_is_too_old_gets_the_rows_anew(
    serial: Place, server: ServerProcess
) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    warehouse.create("copy", "SELECT id FROM raw")
    assert warehouse.refresh("copy", here=True).ok
    with Client(server.address.url) as client:
        first = Reader()
        with client.tables.watch("copy") as watch:
            first.until(watch, lambda: first.caught_up >= 0)
            position = watch.position
        serial.write("raw", [2])
        assert warehouse.refresh("copy", here=True).ok
        with client.tables.watch("copy", after=position) as watch:
            first.until(watch, lambda: bool(first.snapshots))
        assert first.rows == {(1,): 1, (2,): 1}
        serial.write("raw", [3])
        assert warehouse.refresh("copy", here=True).ok
        expire(serial.lake, older_than=datetime.now(UTC) + timedelta(seconds=1))
        late = Reader()
        with client.tables.watch("copy", after=position) as watch:
            late.until(watch, lambda: late.caught_up >= 0)
        assert (late.resets, late.rows) == (["history_expired"], serial.rows("copy"))
        warehouse.drop("copy")
        warehouse.create("copy", "SELECT id * 2 AS id FROM raw")
        assert warehouse.refresh("copy", here=True).ok
        other = Reader()
        with client.tables.watch("copy", after=position) as watch:
            other.until(watch, lambda: other.caught_up >= 0)
        assert (other.resets, other.rows) == (["recreated"], {(2,): 1, (4,): 1, (6,): 1})


def test_other_tools_changes_and_large_ones(serial: Place, server: ServerProcess) -> None:
    """A lake table that no refresh makes is watched too: DuckDB writes it."""
    serial.write("raw", range(3_000))
    reader = Reader()
    with Client(server.address.url) as client, client.tables.watch("raw") as watch:
        reader.until(watch, lambda: reader.caught_up >= 0)
        assert len(reader.rows) == 3_000
        duck = Duck(serial.address)
        duck.run("DELETE FROM raw WHERE id < 2500")
        duck.run("INSERT INTO raw VALUES (7), (7)")
        duck.close()
        reader.until(watch, lambda: reader.rows[(7,)] == 2)
        assert reader.rows == serial.rows("raw")
        assert len(reader.snapshots) == 2
        serial.write("raw", range(pushed.CHANGES_MAX + 1))
        reader.until(watch, lambda: bool(reader.resets))
        reader.until(watch, lambda: reader.rows.total() == serial.rows("raw").total())
        assert reader.resets == ["too_large"]


def test_bad_watches_are_refused(serial: Place, server: ServerProcess) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    warehouse.create("empty", "SELECT id FROM raw", schedule="on demand")
    with Client(server.address.url) as client:
        for name, error in (("nosuch", TableNotFound), ("empty", NoContents)):
            with client.tables.watch(name) as watch, pytest.raises(error):
                watch.next_event(PATIENCE_S)
        with client.tables.watch("raw", after="7") as watch, pytest.raises(InvalidRequest):
            watch.next_event(PATIENCE_S)
    answer = Api(server.address).request(
        "GET", "/v0/tables/raw/watch", headers={"accept": "application/json"}
    )
    assert answer.status == 406


def test_a_drop_ends_the_watch_with_a_clear_error(serial: Place, server: ServerProcess) -> None:
    asyncio.run(dropped(serial, server))


async def dropped(serial: Place, server: ServerProcess) -> None:
    serial.write("raw", [1])
    serial.warehouse.create("copy", "SELECT id FROM raw")
    assert serial.warehouse.refresh("copy", here=True).ok
    async with AsyncClient(server.address.url) as client, client.tables.watch("copy") as watch:
        async for event in watch:
            if isinstance(event, TableCaughtUp):
                break
        await asyncio.to_thread(serial.warehouse.drop, "copy")
        with pytest.raises(TableNotFound):
            async for _ in watch:
                pass
