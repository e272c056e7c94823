"""Tables of many small files become few files again, and nobody who reads them notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.lake.selection import FileRows
from penstock.tables.coordinator.upkeep import owner_of, tidy
from tests.integration.lake.duck import Duck
from tests.integration.tables.place import Place


def test_many_files_are_put_together_and_no_row_changes(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind, delta=True)
    warehouse, store = place.warehouse, place.warehouse._store
    for number in range(7):
        place.write("raw", range(number * 10, number * 10 + 9))
        if number == 0:
            query = "SELECT id FROM raw WHERE id % 5 <> 0"
            warehouse.create("made", query, schedule="on demand")
            warehouse.create("below", "SELECT count(*) AS n FROM made", schedule="on demand")
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


def test_a_large_file_that_lost_one_row_in_a_hundred_is_rewritten(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind)
    warehouse, store = place.warehouse, place.warehouse._store
    place.write("raw", range(8_000))
    warehouse.create("made", "SELECT id FROM raw", schedule="on demand")
    assert warehouse.refresh("made", here=True).ok
    for lost, expected in ((79, []), (1, ["made"])):
        version = place.lake.table_at("made")
        change = place.lake.begin()
        first = 100 if expected else 0
        gone = FileRows(version.files[0], np.arange(first, first + lost))
        change.delete_rows(version.table, [gone], inline_max=0)
        place.lake.commit(change)
        assert tidy(store, 0, worn_rows_min=8_001) == []
        assert tidy(store, 0, worn_rows_min=8_000) == expected
    (file,) = place.lake.table_at("made").files
    assert (file.record_count, file.deletes) == (7_920, ())
    assert place.lake.scan("made").num_rows == 7_920


def test_what_upkeep_reserved_before_it_died_is_given_back_by_the_next_coordinator(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind)
    lake, store = place.lake, place.warehouse._store
    place.write("raw", [1, 2])
    table, rows = lake.table("raw"), lake.scan("raw")
    tokens = [lake.reserve(600_000, owner) for owner in (owner_of(store), "")]
    (died, lives) = (lake.write(table, rows, token=token).path for token in tokens)
    assert place.warehouse.sweep(grace_ms=-60_000) == []
    with place.warehouse.coordinator():
        place.until(lambda: place.warehouse.health().state.value == "ok", "a coordinator")
        assert lake.query("SELECT token FROM penstock_lake_writers") == [(tokens[1],)]
    assert place.warehouse.sweep(grace_ms=-60_000) == [died]
    assert lives in {file.path for file in lake.storage.files(lake.data_path)}


def test_upkeep_that_somebody_got_in_the_way_of_keeps_nothing_reserved(
    places: Callable[..., Place],
) -> None:
    place = places(delta=True)
    warehouse, lake = place.warehouse, place.lake
    place.write("raw", [0])
    warehouse.create("made", "SELECT id FROM raw", schedule="on demand")
    assert warehouse.refresh("made", here=True).ok
    for number in range(1, 6):
        place.write("raw", [number])
        assert warehouse.refresh("made", here=True).ok
    write = lake.database.write
    pending = [True]

    @contextmanager
    def late(**how: Any) -> Iterator[Any]:
        """Another tool deletes a row between the moment files are read and the commit."""
        if pending and lake.query("SELECT count(*) FROM penstock_lake_writers") == [(1,)]:
            pending.clear()
            with Duck(place.address) as duck:
                duck.run("DELETE FROM lake.main.made WHERE id = 3")
        with write(**how) as cursor:
            yield cursor

    lake.database.write = late  # type: ignore[method-assign]
    assert tidy(warehouse._store, 0, files_max=5) == []
    assert not pending
    assert lake.query("SELECT count(*) FROM penstock_lake_writers") == [(0,)]
    assert place.rows("made") == {(n,): 1 for n in (0, 1, 2, 4, 5)}
