"""What a coordinator goes on after: its database was away, its clock was set back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.app.tables import Warehouse
from penstock.kernel.errors import Unavailable
from penstock.kernel.system import SystemClock
from penstock.lake.expire import SNAPSHOTS_KEPT_MS
from penstock.tables.coordinator.lease import CoordinatorLeaseLost, LeaseKeeper, take_lease
from penstock.tables.coordinator.loop import retention_ms
from penstock.tables.coordinator.session import new_identity
from penstock.tables.core.health import HealthState
from penstock.tables.core.history import RefreshOutcome
from penstock.tables.core.verdict import Reason
from penstock.tables.engine import Factory
from penstock.tables.settings import WarehouseSettings
from tests.integration.postgres import PROGRAMS, new_database, postgres_server, run_as_owner
from tests.integration.tables.place import Place

EVERY = "20ms"
SUCCEEDED = RefreshOutcome.SUCCEEDED
DAY_MS = 86_400_000


@pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed")
def test_a_coordinator_waits_for_a_database_that_was_killed_and_goes_on_when_that_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    with postgres_server() as words:
        address = f"postgres:{new_database(words, 'restarted')}"
        place = Place(address, tmp_path)
        place.write("raw", [1])
        place.warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
        loop = place.warehouse.coordinator(say=said.append)
        with loop:
            place.until(place.fresh)
            assert loop.trouble is None
            with stopped(words):
                place.until(lambda: loop.trouble is not None, "it to be told")
                for call in (place.warehouse.status, place.warehouse.health, place.lake.latest):
                    with pytest.raises(
                        Unavailable, match="the catalog on PostgreSQL cannot be reached"
                    ):
                        call()
                with pytest.raises(
                    Unavailable, match="the catalog on PostgreSQL cannot be reached"
                ):
                    place.warehouse.create("b", "SELECT id FROM raw")
            place.until(lambda: loop.trouble is None, "the coordinator to be back")
            place.write("raw", [2])
            place.until(place.fresh)
        assert place.rows("a") == {(1,): 1, (2,): 1}
        assert [record.outcome for record in place.warehouse.history("a")] == [SUCCEEDED] * 2
        place.close()
    about = [line for line in said if "catalog" in line]
    assert [line.partition(":")[0] for line in about[:1]] == ["waiting for the catalog"]
    assert about[1].startswith("the catalog is back after ")
    assert len(about) == 2, about
    assert not [record for record in caplog.records if record.exc_info], "no traceback"


LOCK = """
import sqlite3, sys
lock = sqlite3.connect(sys.argv[1], isolation_level=None)
lock.execute(sys.argv[2])
print("locked", flush=True)
input()
"""


@contextmanager
def locked(place: Place, how: str) -> Iterator[None]:
    """While another process holds the file of a catalog."""
    path = place.address.removeprefix("sqlite:")
    command = [sys.executable, "-c", LOCK, path, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            process.communicate(b"\n")


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_coordinator_waits_for_a_catalog_that_another_process_locked(
    places: Callable[..., Place], mode: str
) -> None:
    said: list[str] = []
    place = places(parallel_refresh_mode=mode, catalog_timeout_ms=200, lease_ms=1_000)
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "hold")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT now() AS at", schedule=EVERY)
    with warehouse.coordinator(say=said.append) as loop:
        place.until((place.faults / "a.held").exists, "a to be refreshed")
        with locked(place, "BEGIN EXCLUSIVE"):
            place.fault("a", None)
            place.until(lambda: loop.trouble is not None, "it to be told")
            place.until(lambda: warehouse.health().state is HealthState.STALLED, "people to see")
            assert "locked" in warehouse.health().text
            assert place.frontiers().keys() <= {"b"}
            with pytest.raises(Unavailable, match="locked"):
                warehouse.pause("a")
        place.until(lambda: loop.trouble is None, "the coordinator to be back")
        place.until(lambda: {"a", "b"} <= place.frontiers().keys(), "a and b to be made")
        place.until(lambda: warehouse.health().state is HealthState.OK, "it to be well")
        warehouse.pause("b")
        place.write("raw", [2])
        place.until(lambda: place.rows("a") == {(1,): 1, (2,): 1}, "a to follow")
    assert {record.outcome for record in warehouse.history("a")} == {SUCCEEDED}
    assert sum("coordinating as" in line for line in said) == 1, "it is the same life"
    about = [line.partition(":")[0] for line in said if "catalog" in line]
    assert about[0] == "waiting for the catalog"
    assert about[1].startswith("the catalog is back after ")


def test_an_idle_coordinator_writes_nothing_but_its_lease_and_tables_are_fresh_all_the_same(
    places: Callable[..., Place],
) -> None:
    place = places(parallel_refresh_mode="off", lease_ms=300)
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM a", schedule="* * * * * *")
    with warehouse.coordinator():
        place.until(place.fresh)
        place.until(lambda: board_is_said(place), "it to be told")
        renewed(place)
        before, fresh_ms = everything(place), [row.fresh_ms for row in warehouse.status()]
        for _ in range(3):
            renewed(place)
        place.until(
            lambda: all(
                row.fresh_ms is not None and at_ms is not None and row.fresh_ms > at_ms
                for row, at_ms in zip(warehouse.status(), fresh_ms, strict=True)
            ),
            "both to be found fresh again",
        )
        assert everything(place) == before
        assert warehouse.health().state is HealthState.OK


def board_is_said(place: Place) -> bool:
    """Whether what is said is of a coordinator that has nothing to do."""
    status = place.warehouse.status()
    return (
        place.warehouse.health().state is HealthState.OK
        and all(row.reason is Reason.NOT_DUE for row in status)
        and len(place.lake.query("SELECT 1 FROM penstock_skips")) == len(status)
        and '"b"' in place.lake.query("SELECT value FROM penstock_board")[0][0]
    )


def renewed(place: Place) -> None:
    expires_ms = lease_of(place)
    place.until(lambda: lease_of(place) > expires_ms, "the next renewal")


def lease_of(place: Place) -> int:
    return int(place.lake.query("SELECT expires_at FROM penstock_leases")[0][0])


def everything(place: Place) -> dict[str, list[Any]]:
    """All rows of a catalog but the lease."""
    with place.lake.look() as reader:
        names = place.lake.database.tables(reader.cursor) - {"penstock_leases"}
        return {name: reader.rows(f"SELECT * FROM {name}") for name in sorted(names)}


def test_only_a_coordinator_that_has_a_lease_of_its_own_choice_says_so_often() -> None:
    settings = WarehouseSettings("sqlite:x", Factory("a:b"))
    assert (settings.lease_of("sqlite"), settings.lease_of("postgres")) == (120_000, 10_000)
    assert replace(settings, lease_ms=7_000).lease_of("sqlite") == 7_000


def test_a_clock_that_is_set_back_stops_nothing_also_not_after_a_restart(
    places: Callable[..., Place],
) -> None:
    place, clock = places(parallel_refresh_mode="off"), MovedClock()
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    clock.ahead_ms = DAY_MS
    with Warehouse(place.warehouse.settings, clock=clock) as warehouse:
        with warehouse.coordinator():
            place.until(place.fresh)
            clock.ahead_ms = 0
            place.write("raw", [2])
            place.until(place.fresh, "a to follow though time went back")
        with warehouse.coordinator():
            place.write("raw", [3])
            place.until(place.fresh, "a to follow though it is from the future")
    place.check_contents()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_refresh_that_takes_longer_than_its_reservation_lands(
    places: Callable[..., Place], mode: str
) -> None:
    place = places(parallel_refresh_mode=mode, reserve_ms=2_000)
    place.write("raw", [1])
    place.fault("a", "hold")
    place.warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with place.warehouse.coordinator():
        place.until((place.faults / "a.held").exists, "a to be refreshed")
        try:
            first_ms = reserved_until_ms(place)
            place.until(lambda: reserved_until_ms(place) > first_ms + 2_000, "more time")
            place.warehouse.sweep(grace_ms=-60_000)
        finally:
            place.fault("a", None)
        place.until(place.fresh)
    assert [record.outcome for record in place.warehouse.history("a")] == [RefreshOutcome.SUCCEEDED]
    place.check_contents()


def test_old_snapshots_leave_with_their_files_and_tables_go_on(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(
        kind, parallel_refresh_mode="off", snapshot_retention_ms=1, sweep_every_ms=50,
        sweep_grace_ms=1,
    )  # fmt: skip
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with place.warehouse.coordinator():
        for number in range(2, 5):
            place.write("raw", [number])
            place.until(place.fresh)
        place.until(lambda: len(place.lake.snapshots()) == 1, "all but the newest to be forgotten")
        place.until(lambda: stored(place) == named(place), "their files to be gone")
        place.write("raw", [5])
        place.until(place.fresh, "a to follow without what was before")
    assert place.rows("a") == {(number,): 1 for number in range(1, 6)}


def test_snapshots_of_a_lake_that_somebody_else_made_are_kept(places: Callable[..., Place]) -> None:
    place = places()
    store, settings = place.warehouse._store, place.warehouse.settings
    assert retention_ms(settings, place.lake) == SNAPSHOTS_KEPT_MS
    assert retention_ms(replace(settings, snapshot_retention_ms=7), place.lake) == 7
    store.run("UPDATE ducklake_metadata SET value = 'DuckDB' WHERE key = 'created_by'")
    assert retention_ms(settings, place.lake) == 0
    assert retention_ms(replace(settings, snapshot_retention_ms=7), place.lake) == 7


def test_a_lease_that_another_held_meanwhile_is_not_taken_back(
    places: Callable[..., Place],
) -> None:
    store = places().warehouse._store
    ours, theirs = new_identity(store.warehouse), new_identity(store.warehouse)
    now_ms = SystemClock().now_ms()
    clock = MovedClock()
    assert take_lease(store, ours, now_ms=now_ms, lease_ms=400)
    with LeaseKeeper(store, ours, lease_ms=400, now_ms=clock.now_ms, report=lambda: None) as keeper:
        keeper.check()
        store.run("UPDATE penstock_leases SET holder = ?, expires_at = 0", theirs)
        with pytest.raises(CoordinatorLeaseLost, match="another coordinator"):
            until(keeper)
    assert store.lease().holder == theirs  # type: ignore[union-attr]


def until(keeper: LeaseKeeper) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        keeper.check()


def stored(place: Place) -> set[str]:
    return {file.path for file in place.lake.storage.files(place.lake.data_path)}


def named(place: Place) -> set[str]:
    return {file.path for name in ("raw", "a") for file in place.lake.table_at(name).files}


def reserved_until_ms(place: Place) -> int:
    return int(place.lake.query("SELECT max(expires_at_ms) FROM penstock_lake_writers")[0][0])


class MovedClock(SystemClock):
    """A clock whose wall time people set."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@contextmanager
def stopped(words: str) -> Iterator[None]:
    """While a server is away."""
    home = Path(words.split(maxsplit=1)[0].removeprefix("host="))
    program = PROGRAMS[-1].parent / "pg_ctl"

    def control(*how: str) -> None:
        run_as_owner(home, program, "-D", home / "data", "-w", "-l", home / "log", *how)

    control("-m", "immediate", "stop")
    try:
        yield
    finally:
        control("-o", f"-c listen_addresses='' -k {home} -c fsync=off", "start")
