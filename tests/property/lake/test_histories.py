"""Random histories: our writes and DuckDB's in any order, against a plain dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.scan import file_history, read_rows
from penstock.lake.selection import FileRows, live
from tests.integration.lake.duck import Duck
from tests.integration.postgres import PROGRAMS, postgres_server

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
EAGER = CompactionPolicy(files_min=2, deleted_share_min=0.01)
NUMBERS = count()
KINDS = ("sqlite", "postgres") if PROGRAMS else ("sqlite",)

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["we append", "we append", "we delete", "we delete by file", "we replace", "we compact",
             "we rename", "duck inserts few", "duck inserts many", "duck deletes few",
             "duck deletes many", "duck updates", "duck flushes", "duck merges", "duck rewrites"]
        ),
        st.integers(1, 30),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def lake(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Catalog, Duck]]:
    directory = tmp_path_factory.mktemp("lake")
    if request.param == "sqlite":
        yield from opened(f"sqlite:{directory}/catalog.sqlite", directory)
    else:
        with postgres_server() as words:
            yield from opened(f"postgres:{words}", directory)


def opened(address: str, directory: Path) -> Iterator[tuple[Catalog, Duck]]:
    with open_catalog(address, str(directory / "data")) as catalog, Duck(address) as duck:
        yield catalog, duck


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, pairs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=6))
def test_every_reader_sees_the_same_history(
    lake: tuple[Catalog, Duck], steps: list[Step], pairs: list[tuple[int, int]]
) -> None:
    history = History(*lake)
    for step in steps:
        history.take(step)
    history.check_past()
    for left, right in pairs:
        history.check_changes(left, right)


@dataclass
class History:
    """A table, what should be in it, and what was in it at every snapshot so far."""

    catalog: Catalog
    duck: Duck
    name: str = field(default_factory=lambda: f"t{next(NUMBERS)}")
    rows: dict[int, str] = field(default_factory=dict)
    past: dict[int, dict[int, str]] = field(default_factory=dict)
    value: str = "v"
    keys: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        transaction = self.catalog.begin()
        transaction.create_table(self.catalog.schema("main"), self.name, SCHEMA)
        self.catalog.commit(transaction)
        self.past[self.catalog.latest().id] = {}

    def take(self, step: Step) -> None:
        word, size, seed = step
        getattr(self, word.replace(" ", "_"))(size, seed)
        self.past[self.catalog.latest().id] = dict(self.rows)
        assert self.read() == self.rows, step

    def read(self, at: int | None = None) -> dict[int, str]:
        table = self.catalog.scan(self.catalog.table(self.name, at), at)
        keys, values = (table.column(i).to_pylist() for i in (0, 1))
        assert len(set(keys)) == len(keys)
        return dict(zip(keys, values, strict=True))

    def new_rows(self, size: int) -> pa.Table:
        keys = [next(self.keys) for _ in range(size)]
        rows = {key: f"{self.name} {key}" for key in keys}
        self.rows.update(rows)
        return pa.table({"k": keys, self.value: list(rows.values())})

    def some(self, size: int, seed: int) -> list[int]:
        """Keys to change: neighbours, from a place that the seed picks."""
        keys = sorted(self.rows)
        start = seed * len(keys) // 100
        return keys[start : start + size]

    def we_append(self, size: int, seed: int) -> None:
        table = self.catalog.table(self.name)
        transaction = self.catalog.begin()
        parts = [self.new_rows(size) for _ in range(1 + seed % 2)]
        transaction.add_files(table, [self.catalog.write(table, part) for part in parts])
        self.catalog.commit(transaction)

    def we_delete(self, size: int, seed: int, inline_max: int = 64) -> None:
        doomed = self.some(size, seed)
        version = self.catalog.table_at(self.name)
        transaction = self.catalog.begin(at=version.snapshot)
        found = []
        for file in version.files:
            rows = live(file_history(self.catalog.storage, file), version.snapshot.id)
            table = read_rows(self.catalog.storage, rows, version.table.columns, version.mappings)
            mask = pc.is_in(table.column("k"), pa.array(doomed, pa.int64()))
            where = np.flatnonzero(mask.to_numpy())
            places = np.arange(file.record_count) if rows.positions is None else rows.positions
            if len(where):
                found.append(FileRows(file, places[where]))
        inlined = version.inlined
        keys = inlined.rows.column("k").to_pylist()
        ids = [i for i, key in zip(inlined.row_ids, keys, strict=True) if key in set(doomed)]
        transaction.delete_rows(version.table, found, inline_max=inline_max)
        transaction.delete_inlined(version.table, ids)
        self.catalog.commit(transaction)
        self.forget(doomed)

    def we_delete_by_file(self, size: int, seed: int) -> None:
        self.we_delete(size, seed, inline_max=0)

    def we_replace(self, size: int, seed: int) -> None:
        self.rows.clear()
        table = self.catalog.table(self.name)
        transaction = self.catalog.begin()
        transaction.replace_contents(table, [self.catalog.write(table, self.new_rows(size))])
        self.catalog.commit(transaction)

    def we_compact(self, size: int, seed: int) -> None:
        compact(self.catalog, self.name, EAGER)

    def we_rename(self, size: int, seed: int) -> None:
        transaction = self.catalog.begin()
        new = f"v{next(NUMBERS)}"
        transaction.rename_column(self.catalog.table(self.name), self.value, new)
        self.catalog.commit(transaction)
        self.value = new

    def duck_inserts_few(self, size: int, seed: int) -> None:
        self.duck_insert(self.new_rows(1 + size % 3))

    def duck_inserts_many(self, size: int, seed: int) -> None:
        self.duck_insert(self.new_rows(11 + size))

    def duck_insert(self, rows: pa.Table) -> None:
        values = ", ".join(f"({row['k']}, '{row[self.value]}')" for row in rows.to_pylist())
        self.duck.run(f"INSERT INTO {self.name} VALUES {values}")

    def duck_deletes_few(self, size: int, seed: int) -> None:
        self.duck_delete(self.some(1 + size % 3, seed))

    def duck_deletes_many(self, size: int, seed: int) -> None:
        self.duck_delete(self.some(11 + size, seed))

    def duck_delete(self, doomed: list[int]) -> None:
        if doomed:
            listed = ", ".join(map(str, doomed))
            self.duck.run(f"DELETE FROM {self.name} WHERE k IN ({listed})")
            self.forget(doomed)

    def duck_updates(self, size: int, seed: int) -> None:
        changed = self.some(size, seed)
        if changed:
            listed = ", ".join(map(str, changed))
            text = f"changed {next(NUMBERS)}"
            self.duck.run(f"UPDATE {self.name} SET {self.value} = '{text}' WHERE k IN ({listed})")
            self.rows.update(dict.fromkeys(changed, text))

    def duck_flushes(self, size: int, seed: int) -> None:
        self.duck.run(f"CALL ducklake_flush_inlined_data('lake', table_name => '{self.name}')")

    def duck_merges(self, size: int, seed: int) -> None:
        self.duck.run(f"CALL ducklake_merge_adjacent_files('lake', '{self.name}')")

    def duck_rewrites(self, size: int, seed: int) -> None:
        # Flushed first: DuckDB 1.5 mixes up older snapshots of a file that it rewrites and then
        # flushes, where the file had deletes both in the catalog and in a delete file.
        self.duck_flushes(size, seed)
        self.past[self.catalog.latest().id] = dict(self.rows)
        words = f"'lake', '{self.name}', delete_threshold => 0"
        self.duck.run(f"CALL ducklake_rewrite_data_files({words})")

    def forget(self, doomed: list[int]) -> None:
        for key in doomed:
            del self.rows[key]

    def check_past(self) -> None:
        """Both readers, at every snapshot."""
        for at, rows in self.past.items():
            assert self.read(at) == rows, at
            theirs = self.duck.run(f"SELECT * FROM {self.name} AT (VERSION => {at})")
            listed = [tuple(row.values()) for row in theirs.to_pylist()]
            assert len(listed) == len(rows), at
            assert dict(listed) == rows, at

    def check_changes(self, left: int, right: int) -> None:
        """Net changes between two snapshots are the difference of the dictionaries."""
        known = sorted(self.past)
        after, until = sorted(known[place * len(known) // 100] for place in (left, right))
        found = self.catalog.changes(self.catalog.table(self.name, until), after, until)
        old, new = self.past[after], self.past[until]
        gained = pairs_of(found.read_inserted(self.catalog.storage))
        lost = pairs_of(found.read_deleted(self.catalog.storage))
        both = set(gained) & set(lost)
        assert len(gained) == len(set(gained))
        assert set(gained) - both == set(new.items()) - set(old.items()), (after, until)
        assert set(lost) - both == set(old.items()) - set(new.items()), (after, until)
        counted = self.catalog.change_span(self.catalog.table(self.name, until), after, until).count
        assert counted or old == new, "the catalog may count too much, and 0 only if it is so"


def pairs_of(table: pa.Table) -> list[Any]:
    return list(zip(*(table.column(i).to_pylist() for i in (0, 1)), strict=True))
