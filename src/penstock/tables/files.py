"""Tables as `.sql` files: options in a comment header, followed by the query.

A file whose header has `topic` declares the columns of a topic instead, so that a folder is a
complete definition.

>>> text = '''-- schedule: 10s
... -- mode: differential
... SELECT day, sum(amount) AS total
... FROM orders GROUP BY day
... '''
>>> table = parse_table_file("daily_totals.sql", text)
>>> table.name, table.schedule.text, table.mode.value, table.sources
('daily_totals', '10s', 'DIFFERENTIAL', ('orders',))
>>> parse_table_file("a.sql", "-- scedule: 10s\\nSELECT 1 AS one")
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidTableFile: a.sql:1: expected one of consistency, description, \
mode, name, schedule, status, found 'scedule' (did you mean 'schedule'?)
>>> parse_topic_file("orders.sql", "-- topic: orders\\n-- key: id\\nid BIGINT, day DATE\\n").schema
'`id` BIGINT, `day` DATE'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import PurePath
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidTableFile
from penstock.tables.core.model import TableDefinition, define
from penstock.tables.core.topics import TopicSource, declare_topic

KEYS: Final = ("consistency", "description", "mode", "name", "schedule", "status")
TOPIC_KEYS: Final = ("key", "topic", "url")
_OPTION: Final = re.compile(r"--\s*([A-Za-z_]+)\s*:\s*(.*?)\s*")


class Folder(NamedTuple):
    """The definitions in a folder's files."""

    tables: dict[str, TableDefinition]
    topics: dict[str, TopicSource]


class _Option(NamedTuple):
    line: int
    value: str


def parse_table_file(path: str, text: str) -> TableDefinition:
    """Parse one file; the table is named after the file unless the header has a name.

    The header ends at the first line that is not a comment. Header comments not of the form `--
    key: value` are ignored.
    """
    options, query_line = _header(path, text, KEYS)
    query = "\n".join(text.splitlines()[query_line - 1 :]).strip().rstrip(";").strip()
    if not query:
        raise InvalidTableFile(
            f"{path}:{query_line}: expected a query after the header, found none"
        )
    values = {key: option.value for key, option in options.items()}
    name = values.pop("name", PurePath(path).stem)
    if values.get("status", "active").lower() not in ("active", "paused"):
        line = options["status"].line
        raise InvalidTableFile(
            f"{path}:{line}: expected status active or paused, found {values['status']!r}"
        )
    _check_each(path, options)
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
            table = parse_table_file(path, text)
            name, found.tables[table.name] = table.name, table
        if name in paths:
            raise InvalidTableFile(
                f"{path}: expected what no other file defines, found {name!r} in {paths[name]} too"
            )
        paths[name] = path
    return found


def format_table_file(table: TableDefinition) -> str:
    """A definition as the text of a file."""
    lines = [f"-- name: {table.name}"]
    lines += [f"-- description: {table.description}"] if table.description else []
    lines += [
        f"-- schedule: {table.schedule.text}",
        f"-- mode: {table.mode.value.lower()}",
        f"-- consistency: {table.consistency.value}",
    ]
    return "\n".join([*lines, table.query, ""])


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
                f"{path}:{number}: expected {key!r} once, found it in line "
                f"{options[key].line} already"
            )
        if not match[2]:
            raise InvalidTableFile(f"{path}:{number}: expected a value for {key!r}, found none")
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
    return f"expected one of {', '.join(known)}, found {key!r}{hint}"
