"""Tables of many small files become few files again, and nobody who reads them notices."""

from __future__ import annotations

from collections.abc import Callable

from penstock.tables.shell.upkeep import tidy
from tests.integration.tables.place import Place


def test_many_files_are_put_together_and_no_row_changes(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind, delta=True)
    warehouse, store = place.warehouse, place.warehouse._store
    warehouse.create("made", "SELECT id FROM raw WHERE id % 5 <> 0", schedule="on demand")
    warehouse.create("below", "SELECT count(*) AS n FROM made", schedule="on demand")
    for number in range(7):
        place.write("raw", range(number * 10, number * 10 + 9))
        assert warehouse.refresh("made", here=True).ok
    assert warehouse.refresh("below", here=True).ok
    assert len(place.lake.table_at("made").files) == 7
    before = place.lake.latest().id
    store.run("INSERT INTO penstock_locks VALUES ('made', 'somebody/1-1', 0)")
    assert tidy(store, 0, files_max=5) == [], "it is being refreshed"
    store.run("DELETE FROM penstock_locks")
    assert tidy(store, 0, files_max=5) == ["made"]
    assert len(place.lake.table_at("made").files) == 1
    assert tidy(store, 0, files_max=5) == []
    assert place.lake.query("SELECT count(*) FROM penstock_locks") == [(0,)]
    changed = place.lake.changes("made", before)
    assert changed.read_inserted(place.lake.storage).num_rows == 0
    assert changed.read_deleted(place.lake.storage).num_rows == 0
    assert not warehouse.refresh("below", here=True).detail.startswith("refreshed")
    place.write("raw", [5, 6])
    assert warehouse.refresh("made", here=True).ok
    place.check_contents()
