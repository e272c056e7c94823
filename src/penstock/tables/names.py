"""Names of relations: a canonical spelling, so that equal relations have equal names.

A lake table is `schema.table` in lower case, or just `table` in the default schema `main`. A topic
is `topics.` and its name as created, because topic names are case-sensitive.

>>> lake_name("Main.Orders"), lake_name("sales.orders"), topic_source("Meters-7")
('orders', 'sales.orders', 'topics.Meters-7')
>>> topic_of("topics.Meters-7"), topic_of("sales.orders")
('Meters-7', None)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from penstock.protocol.errors import InvalidTable

DEFAULT_SCHEMA: Final = "main"
TOPICS_SCHEMA: Final = "topics"
RESERVED_PREFIX: Final = "penstock_"
NAME_LENGTH_MAX: Final = 120

_PART: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TOPIC_PREFIX: Final = f"{TOPICS_SCHEMA}."


def lake_name(text: str) -> str:
    """The canonical name of a stream table, or `InvalidTable`."""
    parts = text.strip().lower().split(".")
    if len(parts) == 2 and parts[0] == DEFAULT_SCHEMA:
        parts = parts[1:]
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidTable(
            f"expected a name such as 'orders' or 'sales.orders' of letters, digits and _, "
            f"found {text!r}"
        )
    name = ".".join(parts)
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTable(
            f"expected a name of at most {NAME_LENGTH_MAX} characters, found {len(name)}"
        )
    if parts[0] == TOPICS_SCHEMA and len(parts) == 2:
        raise InvalidTable(
            f"expected another schema than '{TOPICS_SCHEMA}', which stands for topics, "
            f"found {text!r}"
        )
    if parts[-1].startswith(RESERVED_PREFIX):
        raise InvalidTable(
            f"expected a name that does not begin with {RESERVED_PREFIX!r}, found {text!r}"
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


def topic_source(topic: str) -> str:
    """The name of a topic as a source."""
    return _TOPIC_PREFIX + topic


def topic_of(source: str) -> str | None:
    """The topic behind a source, or None if it is a lake table."""
    return source[len(_TOPIC_PREFIX) :] if source.startswith(_TOPIC_PREFIX) else None
