"""Tables as `.sql` files, and the steps that turn existing tables into the wanted ones, as data.

A file has options in a comment header, followed by the query. A file whose header has `topic`
declares the columns of a topic instead, so that a folder is a complete definition.

>>> text = '''-- schedule: 10s
... -- mode: differential
... SELECT day, sum(amount) AS total
... FROM orders GROUP BY day
... '''
>>> table = parse_table_file("daily_totals.sql", text)
>>> table.name, table.schedule.text, table.mode.value, table.sources
('daily_totals', '10s', 'DIFFERENTIAL', ('orders',))
>>> parse_topic_file("orders.sql", "-- topic: orders\\n-- key: id\\nid BIGINT, day DATE\\n").schema
'`id` BIGINT, `day` DATE'
>>> new = {"a": define("a", "SELECT 1 AS x", schedule="5s"), "b": define("b", "SELECT * FROM a")}
>>> plan = plan_tables(new, {"a": define("a", "select 1 AS x"), "gone": define("gone", "SELECT 1")})
>>> [table.name for table in plan.create], plan.alter[0].changes, plan.drop
(['b'], ('schedule',), ('gone',))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidTableFile, TableInUse
from penstock.tables.core.graph import StreamGraph, check_modes
from penstock.tables.core.model import Status, TableDefinition, define
from penstock.tables.core.topics import TopicSource, declare_topic
from penstock.tables.query.sources import normal_query

KEYS: Final = (
    "consistency", "description", "mode", "name", "publish", "publish_url", "schedule", "status",
)  # fmt: skip
TOPIC_KEYS: Final = ("key", "topic", "url")
_OPTION: Final = re.compile(r"--\s*([A-Za-z_]+)\s*:\s*(.*?)\s*")
_ALTERABLE: Final = (
    "schedule", "mode", "consistency", "description", "publish", "publish_url",
)  # fmt: skip


class Folder(NamedTuple):
    """The definitions in a folder's files."""

    tables: dict[str, TableDefinition]
    topics: dict[str, TopicSource]


class _Option(NamedTuple):
    line: int
    value: str


def parse_table_file(path: str, text: str, *, url: str | None = None) -> TableDefinition:
    """Parse one file; the table is named after the file unless the header has a name.

    A topic that it publishes to is on the server at `url`, unless the header has another.

    The header ends at the first line that is not a comment. Header comments not of the form `--
    key: value` are ignored.
    """
    options, query_line = _header(path, text, KEYS)
    query = "\n".join(text.splitlines()[query_line - 1 :]).strip().rstrip(";").strip()
    if not query:
        raise InvalidTableFile(f"{path}:{query_line}: there is no query after the header")
    values = {key: option.value for key, option in options.items()}
    name = values.pop("name", PurePath(path).stem)
    if values.get("status", "active").lower() not in ("active", "paused"):
        line = options["status"].line
        raise InvalidTableFile(
            f"{path}:{line}: status must be active or paused, not {values['status']!r}"
        )
    _check_each(path, options)
    values.setdefault("publish_url", url or "")
    try:
        return define(name, query, **values)
    except Rejected as error:
        raise InvalidTableFile(f"{path}:{query_line}: {error.message}") from None


def parse_topic_file(path: str, text: str, *, url: str | None = None) -> TopicSource:
    """Parse a file that declares a topic; `url` is its server unless the header has one."""
    options, columns_line = _header(path, text, TOPIC_KEYS)
    columns = "\n".join(text.splitlines()[columns_line - 1 :]).strip().rstrip(";").strip()
    values = {key: option.value for key, option in options.items()}
    try:
        return declare_topic(
            values["topic"], columns, key=values.get("key", ""), url=values.get("url", url)
        )
    except Rejected as error:
        raise InvalidTableFile(f"{path}:{columns_line}: {error.message}") from None


def parse_folder(files: Mapping[str, str], *, url: str | None = None) -> Folder:
    """Parse the `.sql` files of a folder, as path to text; duplicate definitions are rejected."""
    found = Folder({}, {})
    paths: dict[str, str] = {}
    for path, text in sorted(files.items()):
        name: str
        if _is_topic_file(text):
            source = parse_topic_file(path, text, url=url)
            name, found.topics[source.name] = source.name, source
        else:
            table = parse_table_file(path, text, url=url)
            name, found.tables[table.name] = table.name, table
        if name in paths:
            raise InvalidTableFile(
                f"{path}: {name!r} is defined in {paths[name]} too; keep one of them"
            )
        paths[name] = path
    return found


def _is_topic_file(text: str) -> bool:
    for line in text.splitlines():
        plain = line.strip()
        if plain and not plain.startswith("--"):
            return False
        match = _OPTION.fullmatch(plain)
        if match is not None and match[1].lower() == "topic":
            return True
    return False


def _header(path: str, text: str, known: tuple[str, ...]) -> tuple[dict[str, _Option], int]:
    """The options with their lines, and the line where the query begins."""
    options: dict[str, _Option] = {}
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if plain and not plain.startswith("--"):
            return options, number
        match = _OPTION.fullmatch(plain)
        if match is None:
            continue
        key = match[1].lower()
        if key not in known:
            raise InvalidTableFile(f"{path}:{number}: {_unknown(match[1], known)}")
        if key in options:
            raise InvalidTableFile(
                f"{path}:{number}: {key!r} is given twice; the first is in line {options[key].line}"
            )
        if not match[2]:
            raise InvalidTableFile(f"{path}:{number}: {key!r} has no value")
        options[key] = _Option(number, match[2])
    return options, number + 1


def _check_each(path: str, options: Mapping[str, _Option]) -> None:
    """Check each option separately, so that an error names its line."""
    for key, (line, value) in options.items():
        try:
            define(**{"name": "x", "query": "SELECT 1 AS one", key: value})
        except Rejected as error:
            raise InvalidTableFile(f"{path}:{line}: {error.message}") from None


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(key.lower(), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown option {key!r}{hint}; options are {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """A table that stays, with the names of its changed properties."""

    table: TableDefinition
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Steps in the order they run: drop, declare, replace, create, alter.

    `declare` are topics that are new or have different columns. A replaced table is rebuilt, an
    altered one keeps its contents. `drop` lists readers before their inputs; `create` and `replace`
    list inputs first.
    """

    create: tuple[TableDefinition, ...]
    replace: tuple[AlteredTable, ...]
    alter: tuple[AlteredTable, ...]
    drop: tuple[str, ...]
    unchanged: tuple[str, ...]
    graph: StreamGraph
    declare: tuple[TopicSource, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.create or self.replace or self.alter or self.drop or self.declare)

    def lines(self) -> list[str]:
        """One line per step, for people."""
        return [
            *(f"- drop {name}" for name in self.drop),
            *(f"+ declare {source.name}" for source in self.declare),
            *(f"~ replace {step.table.name} ({', '.join(step.changes)})" for step in self.replace),
            *(f"+ create {table.name}" for table in self.create),
            *(f"~ alter {step.table.name} ({', '.join(step.changes)})" for step in self.alter),
        ]


def plan_tables(
    wanted: Mapping[str, TableDefinition],
    existing: Mapping[str, TableDefinition],
    *,
    prune: bool = True,
) -> TablePlan:
    """Compare wanted and existing tables; without `prune`, unwanted tables stay.

    Rejects, before any step: a cycle, an IMMEDIATE table with nothing to follow, and dropping a
    table that a wanted one reads.
    """
    kept = {} if prune else {name: t for name, t in existing.items() if name not in wanted}
    graph = StreamGraph({**kept, **wanted}.values())
    check_modes(graph)
    create, replace, alter, unchanged = [], [], [], sorted(kept)
    for name in graph.order:
        table, before = graph.tables[name], existing.get(name)
        if name in kept:
            continue
        changes = () if before is None else _changes(before, table)
        if before is None:
            create.append(table)
        elif "query" in changes:
            replace.append(AlteredTable(table, changes))
        elif changes:
            alter.append(AlteredTable(table, changes))
        else:
            unchanged.append(name)
    old = StreamGraph(existing.values())
    drop = tuple(name for name in reversed(old.order) if name not in graph.tables)
    for name in drop:
        if graph.readers.get(name):
            raise TableInUse(name, graph.readers[name])
    return TablePlan(
        tuple(create), tuple(replace), tuple(alter), drop, tuple(sorted(unchanged)), graph
    )


def _changes(before: TableDefinition, table: TableDefinition) -> tuple[str, ...]:
    changes = [name for name in _ALTERABLE if getattr(before, name) != getattr(table, name)]
    # SUSPENDED and ERROR are what became of an active table, not a configured status.
    if (before.status is Status.PAUSED) != (table.status is Status.PAUSED):
        changes.append("status")
    if before.query != table.query and normal_query(before.query) != normal_query(table.query):
        changes.append("query")
    return tuple(changes)
