"""Groups and closures: one snapshot for all members, or nothing of any."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.model import Snapshot
from penstock.lake.scan import scan
from penstock.lake.selection import FileRows
from penstock.tables.core.model import Mode
from penstock.tables.engine import Made
from penstock.tables.worker.inputs import pending_changes, pending_version
from penstock.testing.seeds import RUNS_VARIABLE
from tests.integration.tables.engine import bag
from tests.integration.tables.place import Place

REFRESHES = int(os.environ.get(RUNS_VARIABLE, "12"))
"""`PENSTOCK_RUNS=200` watches hundreds of refreshes."""
MEMBERS = ("left_side", "right_side", "joined", "counted")


def diamond(warehouse: Warehouse) -> None:
    warehouse.create("left_side", "SELECT id FROM raw", schedule="10ms")
    warehouse.create("right_side", "SELECT id FROM raw", schedule="10ms")
    warehouse.create(
        "joined", "SELECT id FROM left_side JOIN right_side USING (id)", schedule="10ms"
    )
    warehouse.create("counted", "SELECT count(*) AS n FROM joined", mode="immediate")


def test_a_reader_never_sees_a_mix_of_a_group(places: Callable[..., Place], kind: str) -> None:
    place = places(kind, delta=kind == "sqlite", parallel_refresh_mode="off")
    place.write("raw", [0])
    diamond(place.warehouse)
    seen: dict[int, int | None] = {}
    stop = threading.Event()
    failed: list[Exception | AssertionError] = []

    def read() -> None:
        with open_catalog(place.address, create=False) as lake:
            while not stop.wait(0.002):
                at = lake.latest()
                if at.id not in seen:
                    try:
                        seen[at.id] = rows_of_the_group(lake, at)
                    except Exception as error:  # for the other thread to tell
                        failed.append(error)
                        return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with place.warehouse.coordinator():
            for number in range(1, REFRESHES):
                place.write("raw", [number])
                place.until(lambda: failed or place.fresh(), "the group to be fresh")
    finally:
        stop.set()
        reader.join()
    assert failed == []
    assert len(set(seen.values()) - {None}) > 1, "the reader must have seen some of the versions"
    for at in place.lake.snapshots():
        found = rows_of_the_group(place.lake, at)
        assert found == seen.get(at.id, found), "nor does a snapshot change afterwards"
    place.check_contents()


def rows_of_the_group(lake: Catalog, at: Snapshot) -> int | None:
    """How many rows each of the diamond's tables has, which must be the same; None before that."""
    made = {info.name for info in lake.tables(at)} & set(MEMBERS)
    if not made:
        return None
    assert made == set(MEMBERS), f"only {made} in {at.id}"
    rows = {name: bag(lake.scan(name, at)) for name in MEMBERS}
    counted = rows.pop("counted")
    assert rows["left_side"] == rows["right_side"] == rows["joined"], f"{rows} in {at.id}"
    assert counted == {(len(rows["joined"]),): 1}, f"{counted} for {rows} in {at.id}"
    return len(rows["joined"])


def test_a_member_that_fails_leaves_all_members_as_they_were(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    diamond(warehouse)
    assert warehouse.refresh("joined").ok
    before = place.frontiers()
    names = ("left_side", "right_side", "joined", "counted")
    rows = {name: place.rows(name) for name in names}
    place.write("raw", [2])
    for broken in names:
        place.fault(broken, "retryable")
        answer = warehouse.refresh("joined")
        assert not answer.ok
        assert broken in answer.detail
        place.fault(broken, None)
        assert place.frontiers() == before
        assert {name: place.rows(name) for name in names} == rows
        for name in names:
            (last, *_) = warehouse.history(name, limit=1)
            assert last.outcome.value == "failed"
            assert broken in last.reason_text
    assert warehouse.sweep(grace_ms=-60_000), "files of members that came before the failing one"
    assert warehouse.refresh("joined").ok
    assert len({at for _, at in place.frontiers().values()}) == 1, "one snapshot for all"
    place.check_contents()


def test_a_member_of_a_closure_reads_what_was_just_made_as_changes(
    place: Place, warehouse: Warehouse
) -> None:
    """The seam for differential refreshes: changes of a member that is not committed yet."""

    first = place.write("raw", [1, 2, 3])
    current = place.lake.table_at("raw")
    new = place.lake.write(current.table, pa.table({"id": [9]}))
    gone = FileRows(current.files[0], np.array([1]))
    made = Made(current.table, Mode.DIFFERENTIAL, (new,), replace=False, deletes=(gone,))
    version = pending_version(current, made, current.snapshot)
    assert bag(scan(place.lake.storage, version)) == {(1,): 1, (3,): 1, (9,): 1}
    span = pending_changes(place.lake, first, made, current.snapshot)
    changes = span.read(place.lake.storage)
    assert bag(changes.read_inserted(place.lake.storage)) == {(9,): 1}
    assert bag(changes.read_deleted(place.lake.storage)) == {(2,): 1}
    whole = Made(current.table, Mode.FULL, (new,))
    assert bag(scan(place.lake.storage, pending_version(current, whole, current.snapshot))) == {
        (9,): 1
    }
    span = pending_changes(place.lake, first, whole, current.snapshot)
    changes = span.read(place.lake.storage)
    assert bag(changes.read_deleted(place.lake.storage)) == {(1,): 1, (2,): 1, (3,): 1}
