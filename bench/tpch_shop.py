"""TPC-H of DuckDB's extension as tables of a lake, changed in batches of any size."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.delta_shop import Cost, refresh
from penstock.app.tables import Warehouse
from penstock.lake.locate import gone_at
from penstock.lake.selection import FileRows

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


class TpchShop:
    """The eight tables, and stream tables over them."""

    def __init__(self, warehouse: Warehouse, scale: float, seed: int) -> None:
        self.warehouse, self.random = warehouse, np.random.default_rng(seed)
        lake = warehouse.lake
        change = lake.begin(reserve_ms=600_000)
        for name, rows in generated(scale).items():
            table = change.create_table(lake.schema("main"), name, rows.schema)
            change.add_files(table, [lake.write(table, rows, token=change.token)])
        lake.commit(change)

    def create(self, name: str, query: str, mode: str) -> None:
        self.warehouse.create(name, query, mode=mode)
        self.refresh(name)

    def refresh(self, name: str) -> Cost:
        return refresh(self.warehouse, name)

    def change(self, kind: str, share: float) -> None:
        """Delete a share of every table, and insert as many rows with values of their neighbours.

        Nation and region change only with a batch of a twentieth or more: a changed nation changes
        a twenty-fifth of everything.
        """
        for name in TABLES:
            if share >= 0.05 or name not in ("nation", "region"):
                self._change(name, share)

    def _change(self, name: str, share: float) -> None:
        lake = self.warehouse.lake
        version = lake.table_at(name)
        live = []
        for file in version.files:
            everything = np.arange(file.record_count)
            live.append(np.setdiff1d(everything, gone_at(lake.storage, file, version.snapshot.id)))
        owner = np.concatenate([np.full(len(rows), at) for at, rows in enumerate(live)])
        places = np.concatenate(live)
        count = max(1, min(len(places) - 1, round(len(places) * share)))
        chosen = np.sort(self.random.choice(len(places), count, replace=False))
        taken = lake.scan(name).take(pa.array(chosen))
        change = lake.begin()
        change.delete_rows(version.table, [
            FileRows(file, np.sort(places[chosen[owner[chosen] == at]]))
            for at, file in enumerate(version.files) if (owner[chosen] == at).any()
        ])  # fmt: skip
        lake.commit(change)
        change = lake.begin()
        change.add_files(version.table, [lake.write(version.table, mixed(taken))])
        lake.commit(change)


def mixed(rows: pa.Table) -> pa.Table:
    """Rows whose last columns are those of the row before them: other values of the same kind."""
    half = rows.num_columns // 2
    order = pa.array(np.roll(np.arange(rows.num_rows), 1))
    columns = [rows.column(at) if at < half else rows.column(at).take(order)
               for at in range(rows.num_columns)]  # fmt: skip
    return pa.table(dict(zip(rows.column_names, columns, strict=True)), schema=rows.schema)


def queries() -> dict[int, str]:
    """The 22 queries."""
    with _loaded() as db:
        found = db.execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    return {number: text.rstrip().rstrip(";") for number, text in found}


def generated(scale: float) -> dict[str, pa.Table]:
    """The rows of the eight tables at a scale factor."""
    with _loaded() as db:
        db.execute(f"CALL dbgen(sf={scale})")
        return {name: db.execute(f"SELECT * FROM {name}").to_arrow_table() for name in TABLES}


def _loaded() -> Any:
    import duckdb

    spec = find_spec("duckdb_extension_tpch")
    if spec is None or spec.origin is None:
        raise RuntimeError("expected the package duckdb-extension-tpch: run `make test` once")
    (path,) = Path(spec.origin).parent.glob("extensions/*/tpch.duckdb_extension")
    db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    db.execute(f"LOAD '{path}'")
    return db
