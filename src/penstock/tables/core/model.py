"""The definition of a stream table: name, query, schedule, mode, and sources.

>>> table = define("Daily", "SELECT day, count(*) AS n FROM orders GROUP BY day", schedule="10s")
>>> table.name, table.sources, table.mode.value, table.schedule.text
('daily', ('orders',), 'AUTO', '10s')
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from penstock.protocol.errors import InvalidTable
from penstock.tables.core.schedule import CALCULATED, Calculated, Schedule, parse_schedule
from penstock.tables.names import lake_name
from penstock.tables.query.sources import read_sources
from penstock.tables.query.volatile import volatile_functions

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
    may change although its inputs did not: it is refreshed on every schedule.
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

    def __post_init__(self) -> None:
        if lake_name(self.name) != self.name:
            raise InvalidTable(f"expected the name {lake_name(self.name)!r}, found {self.name!r}")
        if len(self.query.encode()) > QUERY_BYTES_MAX:
            raise InvalidTable(f"expected a query of at most {QUERY_BYTES_MAX} bytes")
        if tuple(sorted(set(self.sources))) != self.sources:
            raise InvalidTable(f"expected sorted sources, each once, found {self.sources}")
        if self.mode is Mode.IMMEDIATE and not isinstance(self.schedule, Calculated):
            raise InvalidTable(
                "expected no schedule with mode IMMEDIATE, which is refreshed in the commit of "
                f"what it reads, found {self.schedule.text!r}"
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
) -> TableDefinition:
    """Make a definition from text options."""
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
    )


def choose(what: str, found: str, known: list[str]) -> str:
    """Match one of the known words, or raise `InvalidTable` with the nearest."""
    if found in known:
        return found
    near = get_close_matches(found, known, n=1, cutoff=0.5)
    hint = f" (did you mean {str(near[0])!r}?)" if near else ""
    raise InvalidTable(f"expected {what} to be one of {', '.join(known)}, found {found!r}{hint}")
