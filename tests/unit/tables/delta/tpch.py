"""TPC-H in DuckDB, with batches that change every table: deletes, inserts, updates also of keys."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final

import duckdb

from tests.unit.tables.delta.duck import Duck

KEYS: Final = {
    "customer": ("c_nationkey", "(c_nationkey + 7) % 25"),
    "lineitem": ("l_suppkey", "l_suppkey % 90 + 3"),
    "nation": ("n_regionkey", "(n_regionkey + 1) % 5"),
    "orders": ("o_custkey", "o_custkey % 1400 + 11"),
    "part": ("p_size", "p_size % 50 + 1"),
    "partsupp": ("ps_suppkey", "ps_suppkey % 90 + 5"),
    "region": ("r_name", "CASE r_name WHEN 'ASIA' THEN 'EUROPE' ELSE 'ASIA' END"),
    "supplier": ("s_nationkey", "(s_nationkey + 3) % 25"),
}
"""The key of each table that updates point elsewhere."""
VALUES: Final = {
    "lineitem": (
        "l_quantity = l_quantity + 250, l_extendedprice = l_extendedprice * 20, "
        "l_receiptdate = l_commitdate + 1"
    ),
    "orders": "o_totalprice = o_totalprice + 1, o_orderstatus = 'F'",
    "partsupp": "ps_supplycost = ps_supplycost / 2",
    "customer": "c_acctbal = -c_acctbal, c_phone = '13' || c_phone",
    "supplier": "s_acctbal = s_acctbal * 2, s_comment = 'Customer x Complaints'",
    "part": "p_type = 'ECONOMY ANODIZED STEEL', p_brand = 'Brand#23', p_container = 'MED BOX'",
    "nation": "n_comment = n_comment || '.'",
    "region": "r_comment = r_comment || '.'",
}


def load(db: duckdb.DuckDBPyConnection) -> None:
    """Load DuckDB's tpch extension, which is a Python package."""
    spec = find_spec("duckdb_extension_tpch")
    assert spec is not None, "run make, which installs it"
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("extensions/*/tpch.duckdb_extension")
    db.execute(f"LOAD '{path}'")


def queries() -> dict[int, str]:
    """The 22 queries."""
    db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load(db)
    return dict(db.execute("SELECT query_nr, query FROM tpch_queries()").fetchall())


def generated(scale: float) -> Duck:
    """The eight tables at a scale factor."""
    db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load(db)
    db.execute(f"CALL dbgen(sf={scale})")
    tables = {}
    for name in KEYS:
        rows = db.execute(f"DESCRIBE {name}").fetchall()
        tables[name] = {row[0]: row[1] for row in rows}
    duck = Duck(tables)
    for name in KEYS:
        rows = db.execute(f"SELECT * FROM {name}").to_arrow_table()
        duck.db.register("rows", rows)
        duck.db.execute(f"INSERT INTO {name} SELECT * FROM rows")
        duck.db.unregister("rows")
    return duck


def change(duck: Duck, random: Random, most: int = 12) -> None:
    """Change every table: some rows leave, some come twice, some get another key, some values."""
    for name, (key, other) in KEYS.items():
        (count,) = duck.db.execute(f"SELECT count(*) FROM {name}").fetchone() or (0,)
        few = max(1, min(most, count // 20))
        chosen = f"rowid IN (SELECT rowid FROM {name} ORDER BY hash(rowid + {{}}) LIMIT {few})"
        which = [chosen.format(random.random()) for _ in range(4)]
        duck.db.execute(f"INSERT INTO {name} SELECT * FROM {name} WHERE {which[0]}")
        duck.db.execute(f"UPDATE {name} SET {key} = {other} WHERE {which[1]}")
        duck.db.execute(f"UPDATE {name} SET {VALUES[name]} WHERE {which[2]}")
        if count > 4:
            duck.db.execute(f"DELETE FROM {name} WHERE {which[3]}")
