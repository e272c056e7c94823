"""Definitions, refreshes by hand, and a coordinator with real worker processes."""

from __future__ import annotations

from penstock.app.tables import Warehouse
from tests.integration.tables.place import Place


def test_a_chain_follows_its_source(place: Place, warehouse: Warehouse) -> None:
    place.write("raw", [1, 2, 3])
    warehouse.create("doubled", "SELECT id * 2 AS id FROM raw", schedule="50ms")
    warehouse.create("total", "SELECT sum(id)::BIGINT AS total FROM doubled", schedule="50ms")
    with warehouse.coordinator():
        place.until(place.fresh)
        assert place.rows("total") == {(12,): 1}
        place.write("raw", [4])
        place.until(lambda: place.fresh() and place.rows("total") == {(20,): 1})
    place.check_contents()
    assert warehouse.jobs(live_only=True) == []
    assert warehouse.pool().permits == {}
