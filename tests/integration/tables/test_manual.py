"""Refreshes by hand: seen from other machines, as long as they take, and never over newer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.kernel.errors import Unavailable
from penstock.tables import processes
from penstock.tables.core.frontier import LakePosition
from tests.integration.tables.place import Place

NOBODY = "elsewhere/1-1"


@pytest.fixture
def by_hand(places: Callable[..., Place], kind: str) -> Place:
    place = places(kind, parallel_refresh_mode="off", reserve_ms=2_000)
    place.write("raw", [1, 2])
    place.warehouse.create("made", "SELECT id FROM raw WHERE id < 100", schedule="on demand")
    assert place.warehouse.refresh("made", here=True).ok
    place.write("raw", [100])
    return place


def test_a_refresh_by_hand_is_alive_for_other_machines_and_its_files_stay_reserved(
    by_hand: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, store = by_hand, by_hand.warehouse._store
    until = "SELECT expires_at_ms FROM penstock_lake_writers"
    with _held(place) as refresh:
        ((holder,),) = place.lake.query("SELECT holder FROM penstock_locks")
        if place.lake.database.kind != "sqlite":  # one file: there are no other machines
            monkeypatch.setattr(processes, "is_here", lambda name: False)
            assert store.is_alive(holder, place.lake.clock.now_ms())
        first = place.lake.query(until)
        place.until(lambda: place.lake.query(until) > first, "the reservation to be kept up")
    assert refresh.result().detail == "refreshed"


@pytest.mark.parametrize(
    "meanwhile",
    [
        "DELETE FROM penstock_locks",
        f"UPDATE penstock_locks SET holder = '{NOBODY}'",
        "UPDATE penstock_frontiers SET job_id = 17",
        "DELETE FROM penstock_frontiers",
    ],
)
def test_who_lost_the_lock_or_was_overtaken_does_not_land(by_hand: Place, meanwhile: str) -> None:
    place = by_hand
    with _held(place) as refresh:
        place.warehouse._store.run(meanwhile)
        before = place.lake.query("SELECT * FROM penstock_frontiers")
    with pytest.raises(Unavailable, match=r"made was|lock of made"):
        refresh.result()
    assert place.lake.query("SELECT * FROM penstock_frontiers") == before
    left = place.lake.query("SELECT holder FROM penstock_locks")
    assert left == ([(NOBODY,)] if NOBODY in meanwhile else [])


def test_a_volatile_table_is_refreshed_by_hand_though_nothing_moved(by_hand: Place) -> None:
    warehouse = by_hand.warehouse
    warehouse.create("now", "SELECT id, current_timestamp AS at FROM raw", schedule="on demand")
    assert warehouse.refresh("now", here=True).detail == "refreshed"
    assert warehouse.refresh("now", here=True).detail == "refreshed"


def test_the_history_of_an_unchanged_member_names_the_snapshot_of_its_sibling(
    by_hand: Place,
) -> None:
    place, warehouse = by_hand, by_hand.warehouse
    for name in ("left_", "right_"):
        warehouse.create(name, "SELECT id FROM raw", schedule="on demand")
    query = "SELECT count(*) AS n FROM left_ JOIN right_ USING (id) WHERE id < 100"
    warehouse.create("tip", query, schedule="on demand")
    assert warehouse.refresh("tip", here=True).ok
    place.write("raw", [500])
    assert warehouse.refresh("tip", here=True).ok
    (record, *_) = warehouse.history("tip")
    assert record.frontier == place.frontiers()["tip"][0]
    assert record.frontier["left_"] == LakePosition(place.lake.latest().id)


@contextmanager
def _held(place: Place) -> Iterator[Future[Any]]:
    """A refresh by hand that has begun, and may end when the block does."""
    place.fault("made", "hold")
    with ThreadPoolExecutor(1) as pool:
        refresh = pool.submit(place.warehouse.refresh, "made", here=True, force=True)
        try:
            place.until((place.faults / "made.held").exists, "the refresh by hand to run")
            yield refresh
        finally:
            place.fault("made", None)
