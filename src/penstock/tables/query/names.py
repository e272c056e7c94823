"""Names of relations in one spelling, and hints for names that do not exist.

A lake table is `schema.table` in lower case, or just `table` in the default schema `main`. A topic
is `topics.` and its name as created, because topic names are case-sensitive.

>>> lake_name("Main.Orders"), lake_name("sales.orders"), topic_source("Meters-7")
('orders', 'sales.orders', 'topics.Meters-7')
>>> topic_of("topics.Meters-7"), topic_of("sales.orders")
('Meters-7', None)
>>> at_offset("SELECT a,\\n  b FROM t", 12), nearest("amuont", ["id", "Amount"])
('line 2, column 3', 'Amount')
>>> listed(["a", "b", "c", "d"], most=3)
'a, b, c and 1 more'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

from sqlglot import exp

from penstock.protocol.errors import InvalidTable

DEFAULT_SCHEMA: Final = "main"
STATE_SCHEMA: Final = "penstock_state"
"""Where tables of what refreshes store beside the contents are."""
TOPICS_SCHEMA: Final = "topics"
RESERVED_PREFIX: Final = "penstock_"
NAME_LENGTH_MAX: Final = 120

_PART: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TOPIC_PREFIX: Final = f"{TOPICS_SCHEMA}."
_ALIKE_MIN: Final = 0.5
_NEAREST_OF_MAX: Final = 5_000


def lake_name(text: str) -> str:
    """The canonical name of a stream table, or `InvalidTable`."""
    parts = text.strip().lower().split(".")
    if len(parts) == 2 and parts[0] == DEFAULT_SCHEMA:
        parts = parts[1:]
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidTable(
            f"{text!r} cannot be a table: use letters, digits and _, as in 'orders' or "
            "'sales.orders'"
        )
    name = ".".join(parts)
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTable(f"a name has at most {NAME_LENGTH_MAX} characters, not {len(name)}")
    if parts[0] == TOPICS_SCHEMA and len(parts) == 2:
        raise InvalidTable(
            f"{text!r} cannot be a table: the schema '{TOPICS_SCHEMA}' stands for topics"
        )
    if parts[-1].startswith(RESERVED_PREFIX):
        raise InvalidTable(
            f"{text!r} cannot be a table: names that begin with {RESERVED_PREFIX!r} are reserved"
        )
    return name


def relation_name(parts: Sequence[str]) -> str:
    """The canonical name of a relation in a query, from its unquoted parts."""
    if len(parts) > 1 and parts[0].lower() == TOPICS_SCHEMA:
        return topic_source(".".join(parts[1:]))
    lowered = [part.lower() for part in parts]
    if len(lowered) == 2 and lowered[0] == DEFAULT_SCHEMA:
        lowered = lowered[1:]
    return ".".join(lowered)


def state_table(name: str, part: str = "") -> str:
    """The table in `STATE_SCHEMA` that belongs to a stream table, or to a part of its query.

    >>> state_table("daily"), state_table("sales.daily"), state_table("daily", "4f2c01aa")
    ('daily', 'sales$daily', 'daily$$4f2c01aa')
    """
    return name.replace(".", "$") + (f"$${part}" if part else "")


def is_state_of(table: str, name: str) -> bool:
    """Whether a table in `STATE_SCHEMA` belongs to a stream table.

    >>> is_state_of("daily$$4f2c01aa", "daily"), is_state_of("daily$more", "daily")
    (True, False)
    """
    return table.partition("$$")[0] == state_table(name)


def topic_source(topic: str) -> str:
    """The name of a topic as a source."""
    return _TOPIC_PREFIX + topic


def topic_of(source: str) -> str | None:
    """The topic behind a source, or None if it is a lake table."""
    return source[len(_TOPIC_PREFIX) :] if source.startswith(_TOPIC_PREFIX) else None


def at_offset(query: str, offset: int) -> str:
    """A place in a text as line and column, both from 1."""
    before = query[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - (before.rfind(chr(10)) + 1) + 1}"


def at_parts(query: str, parts: Sequence[exp.Expr]) -> str:
    """The place of a name in a query, in parentheses; empty if the parser does not know."""
    start = parts[0].meta.get("start") if parts else None
    return "" if start is None else f" ({at_offset(query, int(start))})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to an unknown one, or None if none is similar enough."""
    wanted = name.lower()
    best, most = None, _ALIKE_MIN
    for candidate in list(dict.fromkeys(known))[:_NEAREST_OF_MAX]:
        alike = SequenceMatcher(None, wanted, candidate.lower()).ratio()
        if alike > most:
            best, most = candidate, alike
    return best


def listed(names: Iterable[str], *, most: int = 8) -> str:
    """The first names, and how many more there are."""
    every = list(dict.fromkeys(names))
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most:,} more"


def not_there(what: str, *hints: str | None) -> str:
    """A message about something missing, followed by hints."""
    given = [hint for hint in hints if hint]
    return f"{what}: {' '.join(given)}" if given else what


def did_you_mean(near: str | None) -> str | None:
    """The "did you mean" question, if there is a similar name."""
    return None if near is None else f"did you mean {near!r}?"
