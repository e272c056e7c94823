"""Tables as `.sql` files: a header of comments that says how, and the query that says what.

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
penstock.tables.errors.InvalidTableFile: a.sql:1: expected one of consistency, description, mode, \
name, schedule, status, found 'scedule' (did you mean 'schedule'?)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import PurePath
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected
from penstock.tables.errors import InvalidTableFile
from penstock.tables.model import TableDefinition, define

KEYS: Final = ("consistency", "description", "mode", "name", "schedule", "status")
_OPTION: Final = re.compile(r"--\s*([A-Za-z_]+)\s*:\s*(.*?)\s*")


class _Option(NamedTuple):
    line: int
    value: str


def parse_table_file(path: str, text: str) -> TableDefinition:
    """Read one file; the table's name is the file's unless the header has one.

    The header ends at the first line that is no comment. Comments in it that are not of the form
    `-- key: value` are left to people.
    """
    options, query_line = _header(path, text)
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


def parse_folder(files: Mapping[str, str]) -> dict[str, TableDefinition]:
    """Read the `.sql` files of a folder, given as path to text; no two may define one table."""
    tables: dict[str, TableDefinition] = {}
    paths: dict[str, str] = {}
    for path, text in sorted(files.items()):
        table = parse_table_file(path, text)
        if table.name in tables:
            raise InvalidTableFile(
                f"{path}: expected a table that no other file defines, found {table.name!r} "
                f"in {paths[table.name]} too"
            )
        tables[table.name], paths[table.name] = table, path
    return tables


def format_table_file(table: TableDefinition) -> str:
    """A file that says what a definition says."""
    lines = [f"-- name: {table.name}"]
    lines += [f"-- description: {table.description}"] if table.description else []
    lines += [
        f"-- schedule: {table.schedule.text}",
        f"-- mode: {table.mode.value.lower()}",
        f"-- consistency: {table.consistency.value}",
    ]
    return "\n".join([*lines, table.query, ""])


def _header(path: str, text: str) -> tuple[dict[str, _Option], int]:
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
        if key not in KEYS:
            raise InvalidTableFile(f"{path}:{number}: {_unknown(match[1])}")
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
    """Try each option by itself, so that an error names its line."""
    for key, (line, value) in options.items():
        try:
            define(**{"name": "x", "query": "SELECT 1 AS one", key: value})
        except Rejected as error:
            raise InvalidTableFile(f"{path}:{line}: {error.message}") from None


def _unknown(key: str) -> str:
    near = get_close_matches(key.lower(), KEYS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"expected one of {', '.join(KEYS)}, found {key!r}{hint}"
