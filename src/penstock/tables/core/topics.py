"""Topics as sources: the columns of a topic's records, and whether a key turns them into rows.

A topic holds JSON; a table needs columns. So a topic is declared before a table reads it. Without a
key every record is a row. With a key the last record for each key is its row, and a record whose
meta has `"op": "delete"` removes it.

>>> source = declare_topic("orders", "id BIGINT, amount DECIMAL(10, 2)", key="id")
>>> source.name, source.schema, source.key
('topics.orders', '`id` BIGINT, `amount` DECIMAL(10, 2)', ('id',))
>>> declare_topic("orders", "id BIGINT, amount JSON")
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidSource: column 'amount' has a type that a topic cannot have: JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidSource
from penstock.protocol.values import check_topic_name
from penstock.tables.query.names import topic_source

DEFAULT_URL: Final = "http://127.0.0.1:4000"
COLUMNS_MAX: Final = 1_000
RECORD_COLUMNS: Final = {
    "_seq": "BIGINT", "_ts": "TIMESTAMP", "_node": "STRING", "_tag": "STRING",
}  # fmt: skip
"""Columns of the record itself rather than of its data, with the only type each may have."""

_T = exp.DataType.Type
_PLAIN: Final = frozenset(
    {
        _T.BOOLEAN, _T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT, _T.FLOAT, _T.DOUBLE, _T.DECIMAL,
        _T.TEXT, _T.DATE, _T.TIMESTAMPTZ, _T.TIMESTAMP, _T.TIMESTAMPNTZ,
    }
)  # fmt: skip
_KEYS: Final = _PLAIN - {_T.FLOAT, _T.DOUBLE}


class TopicColumn(NamedTuple):
    """A column of a topic's records: its name and its Spark type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic that tables may read. Made by `declare_topic`, which validates it.

    `url` is the topic server's. The API key is left out, because this is stored where many can read
    it.
    """

    topic: str
    columns: tuple[TopicColumn, ...]
    key: tuple[str, ...] = ()
    url: str = DEFAULT_URL

    @property
    def name(self) -> str:
        """The relation's name in queries."""
        return topic_source(self.topic)

    @property
    def schema(self) -> str:
        """The columns in Spark's syntax."""
        return ", ".join(f"{_quoted(column.name)} {column.type}" for column in self.columns)

    def to_json(self) -> str:
        """As text; equal sources give equal text."""
        return json.dumps(
            {
                "topic": self.topic,
                "columns": [list(column) for column in self.columns],
                "key": list(self.key),
                "url": self.url,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> TopicSource:
        """Parse the output of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        return cls(
            found["topic"],
            tuple(TopicColumn(name, kind) for name, kind in found["columns"]),
            tuple(found["key"]),
            found["url"],
        )


def declare_topic(
    topic: str, schema: str, *, key: str | Iterable[str] = (), url: str | None = None
) -> TopicSource:
    """Make a source from text: columns as in CREATE TABLE, key columns separated by commas."""
    try:
        check_topic_name(topic)
    except Rejected as error:
        raise InvalidSource(error.message) from None
    types = _columns(schema)
    columns = tuple(TopicColumn(name, kind.sql("spark")) for name, kind in types.items())
    names = [part.strip() for part in key.split(",")] if isinstance(key, str) else list(key)
    source = TopicSource(topic, columns, (), checked_url(url or DEFAULT_URL))
    return replace(source, key=_checked_key([name for name in names if name], types))


def schema_columns(schema: str) -> tuple[str, ...]:
    """The names of columns that are written as in CREATE TABLE."""
    return tuple(_columns(schema))


def _columns(schema: str) -> dict[str, exp.DataType]:
    found: dict[str, exp.DataType] = {}
    seen: set[str] = set()
    for column in _parsed(schema):
        if not isinstance(column, exp.ColumnDef) or column.args.get("constraints"):
            raise InvalidSource(
                f"a column is a name and a type, such as 'id BIGINT', not {column.sql()!r}"
            )
        name, kind = column.name, column.args.get("kind")
        if kind is None:
            raise InvalidSource(f"column {name!r} has no type: write it as in 'id BIGINT'")
        if name.lower() in seen:
            raise InvalidSource(f"column {name!r} is declared twice")
        seen.add(name.lower())
        _check_type(name, kind)
        found[name] = kind
    if not 1 <= len(found) <= COLUMNS_MAX:
        raise InvalidSource(f"a topic has from 1 to {COLUMNS_MAX} columns, not {len(found)}")
    return found


def _parsed(schema: str) -> list[exp.Expr]:
    try:
        trees = sqlglot.parse(f"CREATE TABLE t ({schema})", read="spark")
    except SqlglotError:
        trees = []
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Create) or not isinstance(tree.this, exp.Schema):
        raise InvalidSource(f"not columns such as 'id BIGINT, amount DOUBLE': {schema[:200]!r}")
    found: list[exp.Expr] = tree.this.expressions
    for column in found:
        if isinstance(column, exp.Identifier):
            raise InvalidSource(f"column {column.name!r} has no type: write it as in 'id BIGINT'")
    return found


def _check_type(name: str, kind: exp.DataType) -> None:
    own = RECORD_COLUMNS.get(name.lower())
    text = kind.sql("spark")
    if own is not None and text != own:
        raise InvalidSource(
            f"column {name!r} is the record's own and has the type {own}, not {text}"
        )
    if kind.this in _PLAIN:
        return
    parts = list(kind.expressions)
    if kind.this is _T.ARRAY and len(parts) == 1:
        _check_part(name, parts[0])
    elif kind.this is _T.STRUCT and parts:
        for part in parts:
            _check_part(name, part.args.get("kind"))
    elif kind.this is _T.MAP and len(parts) == 2 and parts[0].this is _T.TEXT:
        _check_part(name, parts[1])
    else:
        raise InvalidSource(f"column {name!r} has a type that a topic cannot have: {text}")


def _check_part(name: str, kind: Any) -> None:
    if not isinstance(kind, exp.DataType):
        raise InvalidSource(f"column {name!r} has a part without a type")
    _check_type(f"{name}.", kind)  # nested fields are never record columns


def _checked_key(names: list[str], types: dict[str, exp.DataType]) -> tuple[str, ...]:
    spelled = {name.lower(): name for name in types}
    found: list[str] = []
    for name in names:
        column = spelled.get(name.lower())
        if column is None:
            raise InvalidSource(
                f"there is no column {name!r} for the key; columns are {', '.join(types)}"
            )
        if types[column].this not in _KEYS or column.lower() in RECORD_COLUMNS:
            raise InvalidSource(
                f"column {column!r} of type {types[column].sql('spark')} cannot be a key: choose "
                "one of the data that is exact and not nested"
            )
        if column in found:
            raise InvalidSource(f"key column {column!r} is given twice")
        found.append(column)
    return tuple(found)


def checked_url(url: str) -> str:
    """The address of a topic server in its usual form, or `InvalidSource`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidSource(
            f"{url!r} is not the address of a topic server, such as http://127.0.0.1:4000"
        )
    if "@" in parts.netloc:
        raise InvalidSource(
            "the address of a topic server must not contain a password: use an API key"
        )
    return url.rstrip("/")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
