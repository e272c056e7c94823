"""Two large tables that are changed in batches, and stream tables over them, to be measured.

Of a batch 70 % are updates, 15 % inserts and 15 % deletes, of rows spread evenly or among the
newest twentieth. This process knows where every row lies, so that making a batch reads nothing.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.locate import gone_at
from penstock.lake.scan import read_rows
from penstock.lake.selection import FileRows
from penstock.tables.core.model import Mode

FILE_ROWS = 1_000_000
NEWEST = 20
"""Recent changes are among the newest of so many parts."""
_WITHOUT_DELETED = CompactionPolicy(deleted_share_min=0.0001)

VIEWS = {
    "filter + project": "SELECT id, amount + 1 AS more FROM facts WHERE kind < 8",
    "GROUP BY": """SELECT bucket, sum(amount) AS total, count(*) AS n,
        avg(amount) AS mean FROM facts GROUP BY bucket""",
    "MIN/MAX": """SELECT bucket, min(amount) AS low, max(amount) AS high
        FROM facts GROUP BY bucket""",
    "join": "SELECT f.id, f.amount, d.name FROM facts f JOIN dims d ON f.part = d.id",
    "join + GROUP BY": """SELECT d.region, sum(f.amount) AS total FROM facts f
        JOIN dims d ON f.part = d.id GROUP BY d.region""",
    "left join": "SELECT f.id, f.amount, d.name FROM facts f LEFT JOIN dims d ON f.part = d.id",
    "semi join": """SELECT d.id, d.name FROM dims d
        WHERE EXISTS (SELECT 1 FROM facts f WHERE f.part = d.id)""",
    "anti join": """SELECT f.id, f.amount FROM facts f
        WHERE NOT EXISTS (SELECT 1 FROM dims d WHERE d.id = f.part)""",
    "row_number": """SELECT id, part, amount FROM (SELECT id, part, amount,
        row_number() OVER (PARTITION BY part ORDER BY amount DESC, id) AS n FROM facts)
        WHERE n <= 2""",
    "top 100": "SELECT id, amount FROM facts ORDER BY amount DESC, id LIMIT 100",
}  # fmt: skip


class Cost(NamedTuple):
    """What one refresh took and read, and the mode it was executed in."""

    ms: float
    rows_read: int
    mode: Mode


def refresh(warehouse: Warehouse, name: str) -> Cost:
    """Refresh a table; from the call to its answer, which is after the commit."""
    began = time.perf_counter()
    answer = warehouse.refresh(name)
    took = (time.perf_counter() - began) * 1_000
    (record, *_) = warehouse.history(name, limit=1)
    if not answer.ok or record.executed is None:
        raise RuntimeError(f"{name}: {answer.detail}")
    return Cost(took, record.rows_read, record.executed)


class Source:
    """One table, and where its rows lie."""

    def __init__(self, lake: Catalog, name: str, random: np.random.Generator) -> None:
        self.lake, self.name, self.random = lake, name, random
        self.held: dict[str, Any] = {}
        self.file = np.zeros(0, np.int32)
        self.place = np.zeros(0, np.int64)
        self.paths: list[str] = []
        self.next_id = 0

    def fill(self, columns: dict[str, Any]) -> None:
        """Make the table with these rows, in files of a million."""
        rows = self._table(columns)
        change = self.lake.begin(reserve_ms=600_000)
        table = change.create_table(self.lake.schema("main"), self.name, rows.schema)
        slices = [rows.slice(at, FILE_ROWS) for at in range(0, rows.num_rows, FILE_ROWS)]
        files = [self.lake.write(table, part, token=change.token) for part in slices]
        change.add_files(table, files)
        self.lake.commit(change)
        for file, part in zip(files, slices, strict=True):
            self._at(file.path, part.num_rows)
        self.held = columns
        self.next_id = rows.num_rows

    def chosen(self, kind: str, count: int) -> Any:
        """Places of rows among those held: anywhere, or among the newest."""
        size = len(self.held["id"])
        if kind == "uniform":
            return self.random.choice(size, count, replace=False)
        newest = max(count, size // NEWEST)
        pool = np.argpartition(self.held["id"], size - newest)[-newest:]
        return self.random.choice(pool, count, replace=False)

    def replace(self, gone: Any, added: dict[str, Any]) -> None:
        """Delete the rows at these places and insert others, in two commits as tools do."""
        version = self.lake.table_at(self.name)
        files = {file.path: file for file in version.files}
        rows = []
        for number in np.unique(self.file[gone]):
            places = np.sort(self.place[gone[self.file[gone] == number]])
            rows.append(FileRows(files[self.paths[number]], places))
        change = self.lake.begin()
        change.delete_rows(version.table, rows)
        self.lake.commit(change)
        made = self._table(added)
        change = self.lake.begin()
        file = self.lake.write(version.table, made)
        change.add_files(version.table, [file])
        self.lake.commit(change)
        kept = np.ones(len(self.file), bool)
        kept[gone] = False
        self.held = {name: np.concatenate([column[kept], added[name]])
                     for name, column in self.held.items()}  # fmt: skip
        self.file, self.place = self.file[kept], self.place[kept]
        self._at(file.path, made.num_rows)

    def compact(self) -> None:
        """Rewrite files without deleted rows, and look up where rows lie now."""
        compact(self.lake, self.name, _WITHOUT_DELETED)
        version = self.lake.table_at(self.name)
        columns = tuple(c for c in version.table.columns if c.name == "id")
        self.paths, found = [], []
        self.file, self.place = np.zeros(0, np.int32), np.zeros(0, np.int64)
        for file in version.files:
            ids = read_rows(self.lake.storage, FileRows(file), columns, version.mappings)["id"]
            live = np.ones(len(ids), bool)
            live[gone_at(self.lake.storage, file, version.snapshot.id)] = False
            self._at(file.path, len(ids), live)
            found.append(ids.to_numpy()[live])
        now = np.argsort(np.concatenate(found), kind="stable")
        self.file, self.place = self.file[now], self.place[now]
        order = np.argsort(self.held["id"], kind="stable")
        self.held = {name: column[order] for name, column in self.held.items()}

    def _at(self, path: str, count: int, live: Any = None) -> None:
        places = np.arange(count) if live is None else np.flatnonzero(live)
        number = np.full(len(places), len(self.paths), np.int32)
        self.paths.append(path)
        self.file = np.concatenate([self.file, number])
        self.place = np.concatenate([self.place, places])

    def _table(self, columns: dict[str, Any]) -> pa.Table:
        made = pa.table(columns)
        if self.name != "dims":
            return made
        names = [f"part {n}" for n in self.random.integers(0, 1 << 30, made.num_rows)]
        return made.append_column("name", pa.array(names, pa.string()))


class DeltaShop:
    """`facts` and `dims`, a quarter as many, and stream tables over them."""

    def __init__(self, warehouse: Warehouse, rows: int, seed: int) -> None:
        self.warehouse, self.random = warehouse, np.random.default_rng(seed)
        self.facts, self.dims = (
            Source(warehouse.lake, name, self.random) for name in ("facts", "dims")
        )
        self.parts, self.buckets = max(1, rows // 4), max(1, rows // 10)
        ids = np.arange(rows, dtype=np.int64)
        self.facts.fill(self._facts(ids, ids * self.parts // rows))
        self.dims.fill(self._dims(np.arange(self.parts, dtype=np.int64)))

    def create(self, name: str, query: str, mode: str) -> None:
        """A table, filled."""
        self.warehouse.create(name, query, mode=mode)
        self.refresh(name)

    def refresh(self, name: str) -> Cost:
        return refresh(self.warehouse, name)

    def in_mode(self, name: str, mode: Mode) -> Cost:
        """Refresh a table that must be executed in a mode."""
        cost = self.refresh(name)
        if cost.mode is not mode:
            (record, *_) = self.warehouse.history(name, limit=1)
            raise RuntimeError(f"{name}: {cost.mode} instead of {mode}: {record.reason_text}")
        return cost

    def change(self, kind: str, share: float) -> None:
        """Change a share of the rows of both tables."""
        for source in (self.facts, self.dims):
            self._change(source, kind, max(2, round(len(source.file) * share)))

    def change_rows(self, kind: str, count: int) -> None:
        """Change so many rows of the large table, and a quarter as many of the other."""
        self._change(self.facts, kind, count)
        self._change(self.dims, kind, max(2, count // 4))

    def compact(self) -> None:
        """Rewrite what lost rows."""
        self.facts.compact()
        self.dims.compact()

    def _change(self, source: Source, kind: str, size: int) -> None:
        gone = source.chosen(kind, min(len(source.file) - 1, max(1, round(size * 0.85))))
        kept = gone[: round(size * 0.7)]
        came = size - len(gone)
        ids = np.concatenate(
            [source.held["id"][kept], source.next_id + np.arange(came, dtype=np.int64)]
        )
        source.next_id += came
        if source is self.dims:
            source.replace(gone, self._dims(ids))
            return
        newest = self.parts - max(1, self.parts // NEWEST)
        first = newest if kind == "recent" else 0
        parts = np.concatenate(
            [source.held["part"][kept], self.random.integers(first, self.parts, came)]
        )
        source.replace(gone, self._facts(ids, parts))

    def _facts(self, ids: Any, parts: Any) -> dict[str, Any]:
        return {
            "id": ids,
            "part": parts,
            "bucket": ids * 7_919 % self.buckets,
            "kind": (ids * 31 % 10).astype(np.int32),
            "amount": self.random.integers(0, 1_000_000, len(ids)),
        }

    def _dims(self, ids: Any) -> dict[str, Any]:
        return {"id": ids, "region": ids * 13 % 2_500}
