"""The definition of a stream table: name, query, schedule, mode, and sources.

>>> table = define("Daily", "SELECT day, count(*) AS n FROM orders GROUP BY day", schedule="10s")
>>> table.name, table.sources, table.mode.value, table.schedule.text
('daily', ('orders',), 'AUTO', '10s')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidTable
from penstock.protocol.values import check_topic_name
from penstock.tables.core.schedule import CALCULATED, Calculated, Schedule, parse_schedule
from penstock.tables.core.topics import DEFAULT_URL, checked_url
from penstock.tables.query.names import lake_name
from penstock.tables.query.sources import read_sources, volatile_functions

QUERY_BYTES_MAX: Final = 1 << 20


class Mode(StrEnum):
    """How contents are brought up to date; each refresh records the mode it executed."""

    FULL = "FULL"
    DIFFERENTIAL = "DIFFERENTIAL"
    AUTO = "AUTO"
    IMMEDIATE = "IMMEDIATE"


class Consistency(StrEnum):
    """Whether the branches that meet in a table change together with it."""

    ATOMIC = "atomic"
    NONE = "none"


class Status(StrEnum):
    """Whether a table is refreshed, and if not, why.

    PAUSED by a person, SUSPENDED after repeated failures, ERROR after one that a retry cannot fix.
    """

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    SUSPENDED = "SUSPENDED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A stream table as configured. Made by `define`, which parses text.

    `sources` are the relations the query reads, sorted. `volatile` means that the query's result
    may change although its inputs did not: it is refreshed on every schedule. `publish` is the
    topic that its changes are written to, on the server at `publish_url`; empty: none.
    """

    name: str
    query: str
    sources: tuple[str, ...]
    schedule: Schedule = CALCULATED
    mode: Mode = Mode.AUTO
    consistency: Consistency = Consistency.ATOMIC
    status: Status = Status.ACTIVE
    description: str = ""
    volatile: bool = False
    publish: str = ""
    publish_url: str = ""

    def __post_init__(self) -> None:
        if lake_name(self.name) != self.name:
            raise InvalidTable(
                f"the name must be written {lake_name(self.name)!r}, not {self.name!r}"
            )
        if len(self.query.encode()) > QUERY_BYTES_MAX:
            raise InvalidTable(f"the query is longer than {QUERY_BYTES_MAX} bytes")
        if tuple(sorted(set(self.sources))) != self.sources:
            raise InvalidTable(f"sources must be sorted and distinct: {self.sources}")
        if self.mode is Mode.IMMEDIATE and not isinstance(self.schedule, Calculated):
            raise InvalidTable(
                "a table of mode IMMEDIATE is refreshed in the commit of what it reads and takes "
                f"no schedule: leave out {self.schedule.text!r}"
            )


def define(
    name: str,
    query: str,
    *,
    schedule: str = "calculated",
    mode: str = "auto",
    consistency: str = "atomic",
    status: str = "active",
    description: str = "",
    publish: str = "",
    publish_url: str = "",
) -> TableDefinition:
    """Make a definition from text options."""
    url = _checked(checked_url, publish_url or DEFAULT_URL)
    return TableDefinition(
        name=lake_name(name),
        query=query.strip(),
        sources=read_sources(query),
        schedule=parse_schedule(schedule),
        mode=Mode(choose("mode", mode.upper(), list(Mode))),
        consistency=Consistency(choose("consistency", consistency.lower(), list(Consistency))),
        status=Status(choose("status", status.upper(), list(Status))),
        description=description,
        volatile=bool(volatile_functions(query)),
        publish=_checked(check_topic_name, publish) if publish else "",
        publish_url=url if publish else "",
    )


def _checked(check: Callable[[str], object], value: str) -> str:
    try:
        found = check(value)
    except Rejected as error:
        raise InvalidTable(f"publish: {error.message}") from None
    return found if isinstance(found, str) else value


def choose(what: str, found: str, known: list[str]) -> str:
    """Match one of the known words, or raise `InvalidTable` with the nearest."""
    if found in known:
        return found
    near = get_close_matches(found, known, n=1, cutoff=0.5)
    hint = f" (did you mean {str(near[0])!r}?)" if near else ""
    raise InvalidTable(f"{what} must be one of {', '.join(known)}, not {found!r}{hint}")
