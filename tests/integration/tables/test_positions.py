"""Where tables stand is the same for every process, also when snapshots expired in between."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.expire import expire
from penstock.lake.selection import FileRows
from penstock.tables.positions import Positions
from tests.integration.tables.place import Place


@pytest.fixture
def serial(places: Callable[..., Place], kind: str) -> Place:
    return places(kind, parallel_refresh_mode="off")


def test_a_change_is_not_missed_though_its_snapshot_expired_before_anybody_looked(
    serial: Place,
) -> None:
    place, warehouse = serial, serial.warehouse
    place.write("raw", [1, 2, 3])
    warehouse.create("made", "SELECT id FROM raw WHERE id < 100", schedule="20ms")
    warehouse.create("below", "SELECT count(*) AS n FROM made", schedule="20ms")
    with warehouse.coordinator():
        place.until(place.fresh)
    _checkpoint(place)
    place.write("raw", [4])
    place.write("other", [1])
    _expire(place)
    with warehouse.coordinator():
        place.until(lambda: place.rows("made").total() == 4, "the change")
        place.until(place.fresh, "agreement")
        count = len(warehouse.history())
        place.write("more", [1])
        place.until(lambda: _stands(place).through == place.lake.latest().id)
        place.until(lambda: warehouse.health().state.value == "ok")
        assert len(warehouse.history()) == count, "nothing is refreshed for nothing"
    assert warehouse.refresh("made", here=True).detail == "nothing it reads has changed"
    place.check_contents()


def test_a_change_that_left_no_trace_in_the_catalog_is_not_missed(serial: Place) -> None:
    place, lake = serial, serial.lake
    place.write("raw", [1])
    place.write("raw", [2])
    place.warehouse.create("made", "SELECT id FROM raw", schedule="on demand")
    assert place.warehouse.refresh("made", here=True).ok
    _checkpoint(place)
    version = lake.table_at("raw")
    change = lake.begin()
    change.end_files(version.table, version.files[:1])
    lake.commit(change)
    place.write("other", [1])
    _expire(place)
    assert place.warehouse.refresh("made", here=True).detail == "refreshed"
    assert place.rows("made") == {(2,): 1}
    _expire(place)
    assert place.warehouse.refresh("made", here=True).detail == "nothing it reads has changed"


def test_who_saw_a_delete_and_who_came_after_its_expiry_say_the_same(serial: Place) -> None:
    place, lake = serial, serial.lake
    place.write("raw", [1, 2, 3])
    early = _stands(place)
    early.checkpoint(lake, now=True)
    version = lake.table_at("raw")
    change = lake.begin()
    change.delete_rows(version.table, [FileRows(version.files[0], np.array([0], np.int64))])
    deleted = lake.commit(change).snapshot
    assert deleted is not None
    _look(place, early)
    place.write("other", [1])
    _expire(place)
    late = _stands(place)
    assert _at(place, late) > deleted.id, "nobody has told it yet"
    _look(place, early)
    early.checkpoint(lake)
    for positions in (early, late, _stands(place)):
        _look(place, positions)
        assert _at(place, positions) == deleted.id


def test_what_one_process_could_not_know_others_take_over(serial: Place) -> None:
    place = serial
    place.write("raw", [1])
    early = _stands(place)
    place.write("other", [1])
    _expire(place)
    late = _stands(place)
    late.checkpoint(place.lake)
    _look(place, early)
    assert _at(place, early) == _at(place, late) == place.lake.latest().id


def test_an_expiry_of_our_own_keeps_where_tables_stand(serial: Place) -> None:
    place = serial
    at = place.write("raw", [1])
    _checkpoint(place)
    moved = place.write("raw", [2])
    place.write("other", [1])
    _expire(place, place.lake)
    assert at < moved == _at(place, _stands(place)) < place.lake.latest().id


def _stands(place: Place) -> Positions:
    positions = Positions()
    _look(place, positions)
    return positions


def _look(place: Place, positions: Positions) -> None:
    with place.lake.look() as reader:
        positions.advance(reader)


def _at(place: Place, positions: Positions) -> int:
    with place.lake.look() as reader:
        return positions.of_all(reader, ["raw"])["raw"].snapshot


def _checkpoint(place: Place) -> None:
    _stands(place).checkpoint(place.lake, now=True)


def _expire(place: Place, lake: Catalog | None = None) -> None:
    """Let snapshots expire as another tool does, which tells nobody; or by a lake's own ways."""
    moment = datetime.now(UTC) + timedelta(days=1)
    if lake is not None:
        expire(lake, older_than=moment)
        return
    with open_catalog(place.address, place.data_path, create=False) as other:
        expire(other, older_than=moment)
