"""Tables that are attacked, and what must be true of them once they come to rest."""

from __future__ import annotations

from itertools import combinations

from penstock.lake.changes import parse
from penstock.lake.expire import named_files
from penstock.lake.feed import feed_between, read_feed
from penstock.tables.core.history import RefreshOutcome
from tests.integration.tables.engine import bag
from tests.integration.tables.place import Place

SOURCES = ("raw_a", "raw_b")
TABLES = ("left_side", "right_side", "joined", "followed", "plain", "both")
UNIT = ("left_side", "right_side", "joined", "followed")
"""A diamond, and a table that is refreshed in its commit: they change together."""

EVERY = "30ms"


def build(place: Place, mode: str = "auto") -> None:
    for source in SOURCES:
        place.write(source, [1])

    def create(name: str, query: str, **options: str) -> None:
        place.warehouse.create(name, query, **{"mode": mode, **options})

    create("left_side", "SELECT id, id * 2 AS twice FROM raw_a", schedule=EVERY)
    create("right_side", "SELECT id, id + 1 AS next FROM raw_a", schedule=EVERY)
    create(
        "joined", "SELECT id, twice, next FROM left_side JOIN right_side USING (id)", schedule=EVERY
    )
    create("followed", "SELECT count(*) AS n FROM joined", mode="immediate")
    create("plain", "SELECT id FROM raw_b", schedule=EVERY)
    create("both", "SELECT p.id FROM plain p JOIN joined j ON p.id = j.id", schedule=EVERY)


def glance(place: Place) -> None:
    """What must hold at any moment: the budget, and one job for a table at a time."""
    held = place.warehouse.pool().permits
    assert sum(held.values()) <= place.settings["max_workers"], held
    for one, other in combinations(place.warehouse.jobs(live_only=True), 2):
        assert not set(one.members) & set(other.members), (one, other)


def check(place: Place) -> None:
    """What must hold at rest."""
    place.until(lambda: not place.warehouse.jobs(live_only=True), "jobs to end")
    place.check_contents()
    for table in ("penstock_locks", "penstock_lake_writers"):
        # Upkeep holds one for a moment now and then.
        place.until(
            lambda table=table: place.lake.query(f"SELECT count(*) FROM {table}") == [(0,)],
            f"{table} to be empty",
        )
    assert place.warehouse.pool().permits == {}, "permits without work"
    check_history(place)
    check_feeds(place)
    check_files(place)


def check_feeds(place: Place) -> None:
    """Each feed is the difference of the contents at its ends."""
    lake = place.lake
    names = {table.id: table for table in lake.tables()}
    question = "SELECT table_id, after_snapshot, until_snapshot FROM penstock_lake_feeds"
    for number, after, until in lake.query(question):
        table = names[number]
        with lake.look() as reader:
            (file,) = feed_between(reader, number, after, until) or ()
        rows, weights = read_feed(lake.storage, table, file)
        found = bag(lake.scan(table, after))
        for row, weight in zip(rows.to_pylist(), weights.to_pylist(), strict=True):
            found[tuple(row.values())] += weight
        assert +found == bag(lake.scan(table, until)), (table.name, after, until)


def check_history(place: Place) -> None:
    """Each change of a table is one refresh on record, and each such refresh changed it once."""
    noted: dict[str, set[int]] = {}
    landed: set[tuple[str, int]] = set()
    for record in place.warehouse.history(limit=1_000_000):
        if record.outcome is RefreshOutcome.SUCCEEDED and record.snapshot is not None:
            noted.setdefault(record.table, set()).add(record.snapshot)
            assert (record.table, record.job_id) not in landed, f"{record} landed twice"
            landed.add((record.table, record.job_id))
    found = place.lake.query("SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes")
    changes = [(at, parse(text)) for at, text in found]
    kinds = ("inserted_into_table", "deleted_from_table", "inlined_delete")
    for table in place.warehouse.tables():
        number = place.lake.table(table.name).id
        changed = {at for at, change in changes if number in change.ids(*kinds)}
        assert changed == noted[table.name], table.name
    jobs = {
        frozenset(r.job_id for r in place.warehouse.history(name, limit=1_000_000) if r.executed)
        for name in UNIT
    }
    assert len(jobs) == 1, f"{', '.join(UNIT)} are one unit"


def check_files(place: Place) -> None:
    """What dead writers left is swept, and nothing else is."""
    lake = place.lake

    def swept() -> bool:
        """Upkeep may be writing a file, or removing one, at this very moment; not for ever."""
        place.warehouse.sweep(grace_ms=-60_000)
        stored = {file.path for file in lake.storage.files(lake.data_path)}
        with lake.look() as reader:
            return stored == set(named_files(reader))

    place.until(swept, "files to be those that the catalog names")
    place.check_contents()
