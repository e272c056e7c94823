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

ACCEPTED = tuple(
    line
    for line in (Path(__file__).parent / "accepted.sql").read_text().splitlines()
    if not line.startswith("--")
)
"""Spark accepts them all."""

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
