"""A topic as rows, read over HTTP as Arrow and shaped by DuckDB: what a table must see of it."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from penstock.client import Client
from penstock.tables.core.topics import RECORD_COLUMNS, declare_topic
from penstock.tables.engine import SourceRecreated, TopicRead

OWN = {"_seq": "seq", "_ts": "ts", "_node": "node", "_tag": "tag"}
TYPES = {"STRING": "VARCHAR"}


def topic_rows(read: TopicRead) -> pa.Table:
    """Every record that the topic holds up to a seq, or the last one for each key."""
    return shape(read, records(read))


def records(read: TopicRead) -> pa.Table:
    pieces: list[pa.Table] = []
    if read.epoch:
        with Client(read.url, api_key=read.api_key) as client:
            at = 0
            while at < read.upto_seq:
                page = client.diff_arrow(
                    read.topic, from_seq=at, include_tags=True, include_meta=True
                )
                facts = {k.decode(): v.decode() for k, v in page.schema.metadata.items()}
                if int(facts["epoch"]) != read.epoch:
                    raise SourceRecreated(f"{read.topic} is of epoch {facts['epoch']}")
                pieces.append(page.replace_schema_metadata(None))
                at = int(facts["next_from_seq"])
    schema = pa.schema(
        [("seq", pa.uint64()), ("ts", pa.timestamp("ms", tz="UTC")), ("node", pa.string()),
         ("tag", pa.string()), ("data", pa.string()), ("meta", pa.string())]
    )  # fmt: skip
    return pa.concat_tables([schema.empty_table(), *(piece.cast(schema) for piece in pieces)])


def shape(read: TopicRead, found: pa.Table) -> pa.Table:
    source = declare_topic(read.topic, read.schema, key=read.key)
    columns = ", ".join(expression(column.name, column.type) for column in source.columns)
    latest = "true"
    if read.key:
        keys = ", ".join(f'"{name}"' for name in read.key)
        known = " AND ".join(f'"{name}" IS NOT NULL' for name in read.key)
        latest = (
            f"op IS DISTINCT FROM 'delete' AND {known} "
            f"AND row_number() OVER (PARTITION BY {keys} ORDER BY seq DESC) = 1"
        )
    names = ", ".join(f'"{column.name}"' for column in source.columns)
    with duckdb.connect() as connection:
        connection.register("records", found)
        sql = (
            f"WITH shaped AS (SELECT seq, meta->>'$.op' AS op, {columns} FROM records "
            f"WHERE seq <= {read.upto_seq}), ranked AS (SELECT *, {latest} AS kept FROM shaped) "
            f"SELECT {names} FROM ranked WHERE kept"
        )
        made: Any = connection.execute(sql).to_arrow_table()
        return made


def expression(name: str, kind: str) -> str:
    if name in RECORD_COLUMNS:
        return f'CAST({OWN[name]} AS {TYPES.get(kind, kind)}) AS "{name}"'
    return f"TRY_CAST(data->>'$.{name}' AS {TYPES.get(kind, kind)}) AS \"{name}\""
