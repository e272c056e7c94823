"""Prices in the form of tables for Spark: which price list applies to a meter, and when.

A tariff that is wrong, or missing, does not stop the others: a reading that would need it finds the
reason instead of a price.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.commits.model import ABSENT
from penstock.metering.errors import BadTariff
from penstock.metering.tariffs import (
    METER,
    TARIFF,
    Assignment,
    Tariff,
    meter_id,
    name_of,
    parse_meter,
    parse_tariff,
    tariff_id,
)

PRICE: Final = pa.decimal128(12, 6)
TIME: Final = pa.timestamp("us", tz="UTC")
EVER: Final = datetime.min.replace(tzinfo=UTC)
FOREVER: Final = datetime.max.replace(tzinfo=UTC)
SPANS: Final = pa.schema(
    [("meter", pa.string()), ("valid_from", TIME), ("valid_to", TIME), ("list", pa.int32())]
)
LISTS: Final = pa.schema(
    [
        ("list", pa.int32()), ("tariff", pa.string()), ("zone", pa.string()),
        ("prices", pa.list_(PRICE)), ("problem", pa.string()),
    ]
)  # fmt: skip


class PriceList(NamedTuple):
    """A version of a tariff, or the reason why there is none."""

    tariff: str | None
    zone: str = "UTC"
    prices: tuple[Decimal, ...] | None = None
    problem: str | None = None


class Span(NamedTuple):
    """The price list of a meter from one moment until before another."""

    valid_from: datetime
    valid_to: datetime
    list: PriceList


@dataclass(frozen=True, slots=True)
class Book:
    """`spans` say which list counts for a meter when, `lists` what it asks in each hour."""

    spans: pa.Table
    lists: pa.Table
    zones: tuple[str, ...] = ()
    """The zones of the lists, but UTC."""
    problems: tuple[str, ...] = ()
    """What is wrong with documents, a sentence each."""


class Books:
    """Makes books of the documents of a space; looks only at those that have changed."""

    def __init__(self) -> None:
        self._tariffs: dict[str, Tariff | str] = {}
        self._meters: dict[str, tuple[Assignment, ...] | str] = {}
        self._strays: dict[str, str] = {}
        self.book = _book({}, {}, ())

    @property
    def missing(self) -> str | None:
        """What is missing for any reading to have a price: tariffs, or meters that have one."""
        if not self._tariffs:
            return "tariff"
        return None if self._meters else "meter with a tariff"

    def update(self, documents: Mapping[str, Any], changed: Iterable[str]) -> bool:
        """Apply changed entities; returns whether the book changed."""
        ours = [entity for entity in changed if entity.startswith((TARIFF, METER))]
        for entity in ours:
            self._take(entity, documents.get(entity, ABSENT))
        if ours:
            self.book = _book(self._tariffs, self._meters, self._strays.values())
        return bool(ours)

    def _take(self, entity: str, document: Any) -> None:
        name = name_of(entity)
        is_tariff = entity.startswith(TARIFF)
        kept: dict[str, Any] = self._tariffs if is_tariff else self._meters
        if not _is_named(entity, name, is_tariff):
            kept, name = self._strays, entity
        if document is ABSENT:
            kept.pop(name, None)
        elif kept is self._strays:
            kept[name] = f"bad_tariff: {entity!r} is not the id of a meter or a tariff"
        else:
            kept[name] = _parsed(entity, document, parse_tariff if is_tariff else parse_meter)


def _parsed(entity: str, document: Any, parse: Callable[[Any], Any]) -> Any:
    """What a document says, or what is wrong with it."""
    try:
        return parse(document)
    except BadTariff as error:
        return f"bad_tariff: {entity}: {error.message}"


def _is_named(entity: str, name: str, is_tariff: bool) -> bool:
    """Whether an entity is the one that a name has; a name has only one."""
    try:
        return entity == (tariff_id(name) if is_tariff else meter_id(name))
    except BadTariff:
        return False


def _book(
    tariffs: Mapping[str, Tariff | str],
    meters: Mapping[str, tuple[Assignment, ...] | str],
    strays: Iterable[str],
) -> Book:
    numbers: dict[int, int] = {}
    lists: list[PriceList] = []
    rows: list[tuple[str, datetime, datetime, int]] = []
    priced = {name: list(_lists(name, found)) for name, found in tariffs.items()}
    missing: dict[str, list[Span]] = {}
    for meter, assigned in meters.items():
        for span in _spans(assigned, priced, missing):
            number = numbers.setdefault(id(span.list), len(lists))
            if number == len(lists):
                lists.append(span.list)
            rows.append((meter, span.valid_from, span.valid_to, number))
    problems = [found for found in (*tariffs.values(), *meters.values()) if isinstance(found, str)]
    problems += [*(spans[0].list.problem or "" for spans in missing.values()), *strays]
    return Book(
        pa.table(_columns(rows, len(SPANS)), schema=SPANS),
        pa.table(
            _columns([(number, *each) for number, each in enumerate(lists)], len(LISTS)),
            schema=LISTS,
        ),
        tuple(sorted({each.zone for each in lists} - {"UTC"})),
        tuple(problems),
    )


def _columns(rows: list[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(count)]


def _lists(name: str, found: Tariff | str) -> Iterator[Span]:
    """The price lists of a tariff over all times."""
    if isinstance(found, str):
        yield Span(EVER, FOREVER, PriceList(name, problem=found))
        return
    begins = [version.valid_from for version in found.versions]
    early = f"unknown_tariff: tariff {name!r} begins later"
    yield Span(EVER, begins[0], PriceList(name, problem=early))
    for version, end in zip(found.versions, [*begins[1:], FOREVER], strict=True):
        yield Span(version.valid_from, end, PriceList(name, found.zone.key, version.prices))


def _spans(
    assigned: tuple[Assignment, ...] | str,
    priced: Mapping[str, list[Span]],
    missing: dict[str, list[Span]],
) -> Iterator[Span]:
    """The price lists of a meter over all times that it has a tariff in."""
    if isinstance(assigned, str):
        yield Span(EVER, FOREVER, PriceList(None, problem=assigned))
        return
    ends = [each.valid_from for each in assigned[1:]] + [FOREVER]
    for (tariff, begin), end in zip(assigned, ends, strict=True):
        lists = priced.get(tariff) or missing.setdefault(tariff, [_missing(tariff)])
        first = bisect_right(lists, begin, key=lambda span: span.valid_from) - 1
        for span in lists[first:]:
            if span.valid_from >= end:
                break
            yield Span(max(begin, span.valid_from), min(end, span.valid_to), span.list)


def _missing(tariff: str) -> Span:
    problem = f"unknown_tariff: there is no tariff {tariff!r}"
    return Span(EVER, FOREVER, PriceList(tariff, problem=problem))
