"""Queries over a few relations: those that Spark accepts, and those that it refuses for a name.

The integration tests ask Spark itself whether each list is what it says it is.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

_SIZE = pa.struct([("w", pa.int32()), ("h", pa.int32())])
SCHEMAS = {
    "orders": pa.schema({
        "id": pa.int64(), "customer": pa.string(), "amount": pa.decimal128(10, 2),
        "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "tags": pa.list_(pa.string()),
        "props": pa.map_(pa.string(), pa.string()),
        "item": pa.struct([("name", pa.string()), ("size", _SIZE)]),
        "lines": pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())])),
        "k": pa.string(), "v": pa.int32(),
    }),
    "sales.people": pa.schema({
        "name": pa.string(), "city": pa.string(), "age": pa.int32(), "odd name": pa.string(),
        "User": pa.string(),
    }),
    "topics.Meters-7": pa.schema({
        "meter": pa.int64(), "kwh": pa.float64(), "_seq": pa.int64(),
        "_ts": pa.timestamp("us", "UTC"),
    }),
}  # fmt: skip

_TPCH = {
    "region": "r_regionkey:i r_name:s r_comment:s",
    "nation": "n_nationkey:i n_name:s n_regionkey:i n_comment:s",
    "part": "p_partkey:i p_name:s p_mfgr:s p_brand:s p_type:s p_size:i p_container:s "
    "p_retailprice:n p_comment:s",
    "supplier": "s_suppkey:i s_name:s s_address:s s_nationkey:i s_phone:s s_acctbal:n s_comment:s",
    "partsupp": "ps_partkey:i ps_suppkey:i ps_availqty:i ps_supplycost:n ps_comment:s",
    "customer": "c_custkey:i c_name:s c_address:s c_nationkey:i c_phone:s c_acctbal:n "
    "c_mktsegment:s c_comment:s",
    "orders": "o_orderkey:i o_custkey:i o_orderstatus:s o_totalprice:n o_orderdate:d "
    "o_orderpriority:s o_clerk:s o_shippriority:i o_comment:s",
    "lineitem": "l_orderkey:i l_partkey:i l_suppkey:i l_linenumber:i l_quantity:n "
    "l_extendedprice:n l_discount:n l_tax:n l_returnflag:s l_linestatus:s l_shipdate:d "
    "l_commitdate:d l_receiptdate:d l_shipinstruct:s l_shipmode:s l_comment:s",
}
_KINDS = {"i": pa.int64(), "s": pa.string(), "n": pa.decimal128(12, 2), "d": pa.date32()}
TPCH_SCHEMAS = {
    table: pa.schema([(word[:-2], _KINDS[word[-1]]) for word in columns.split()])
    for table, columns in _TPCH.items()
}


def _lines(name: str) -> tuple[str, ...]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return tuple(line for line in lines if not line.startswith("--"))


ACCEPTED = _lines("accepted.sql")
"""Spark accepts them all."""

TPCH = _lines("tpch.sql")
"""The queries of TPC-H over their own tables."""

REFUSED = (
    ("SELECT nocol FROM orders", "nocol", (1, 8)),
    ("SELECT custmer FROM orders", "customer", (1, 8)),
    ("SELECT id,\n       amonut\nFROM orders", "amount", (2, 8)),
    ("SELECT o.amonut FROM orders o", "amount", (1, 8)),
    ("SELECT orders.id FROM orders o", "orders", (1, 8)),
    ("SELECT x.id FROM orders o", "x", (1, 8)),
    ("SELECT id FROM nosuch", "nosuch", (1, 16)),
    ("SELECT id FROM oders", "orders", (1, 16)),
    ("SELECT name FROM people", "sales.people", (1, 18)),
    ("SELECT name FROM sale.people", "sales.people", (1, 18)),
    ("SELECT kwh FROM topics.`Meters-8`", "topics.Meters-7", (1, 17)),
    ("SELECT id FROM orders WHERE amuont > 1", "amount", (1, 29)),
    ("SELECT id FROM orders GROUP BY id, cust0mer", "customer", (1, 36)),
    ("SELECT id FROM orders ORDER BY amuont", "amount", (1, 32)),
    ("SELECT id FROM orders o JOIN sales.people p ON p.nam = o.k", "name", (1, 48)),
    ("SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM sales.people WHERE nmae = k)", "name",
     (1, 70)),
    ("SELECT total FROM (SELECT sum(v) AS totl FROM orders)", "totl", (1, 8)),
    ("WITH c AS (SELECT id AS n FROM orders) SELECT id FROM c", "id", (1, 47)),
    ("WITH c AS (SELECT idd FROM orders) SELECT 1 FROM c", "id", (1, 19)),
    ("SELECT transform(tagz, x -> x) FROM orders", "tags", (1, 18)),
    ("SELECT transform(tags, x -> x || custmer) FROM orders", "customer", (1, 34)),
    ("SELECT id FROM orders UNION ALL SELECT agee FROM sales.people", "age", (1, 40)),
    ("SELECT id FROM orders UNION ALL SELECT age FROM sales.people ORDER BY agee", "id", (1, 71)),
    ("SELECT id, tag FROM orders LATERAL VIEW explode(tagss) t AS tag", "tags", (1, 49)),
    ("SELECT z.* FROM orders o", "no table 'z'", (1, 8)),
    ("SELECT count(nocol) FROM orders", "nocol", (1, 14)),
    ("SELECT sum(v) OVER (PARTITION BY kk) FROM orders", "k", (1, 34)),
    ("SELECT amt FROM orders AS o(a, b, c, d, e, f, g, h, i, j, z)", "amt", (1, 8)),
)  # fmt: skip
"""Refused for a name: with a name that the answer must have, and the line and column."""
