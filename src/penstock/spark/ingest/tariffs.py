"""What a reading costs: tariffs and who has which, settled into one book that Spark can look into.

Two lake tables say it. `meters` assigns a tariff to a meter from a time on. `tariffs` has the
prices of a tariff from a time on, a row for each band of months, weekdays and hours; where bands
overlap, the one with the smallest number counts. A flat tariff has one band of everything, a
time-of-use tariff has bands of hours, a seasonal one bands of months. All of it is decimals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.kernel.errors import Rejected

PRICE: Final = pa.decimal128(12, 6)
TIME: Final = pa.timestamp("us", tz="UTC")
METERS: Final = pa.schema([("meter", pa.string()), ("tariff", pa.string()), ("valid_from", TIME)])
TARIFFS: Final = pa.schema(
    [
        ("tariff", pa.string()),
        ("valid_from", TIME),
        ("band", pa.int32()),
        ("from_month", pa.int32()),
        ("to_month", pa.int32()),
        ("days", pa.string()),
        ("from_hour", pa.int32()),
        ("to_hour", pa.int32()),
        ("price_per_kwh", PRICE),
    ]
)
CELLS: Final = 12 * 7 * 24
"""Every hour of every weekday of every month: what one version of a tariff has a price for."""

FOREVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class Band(NamedTuple):
    """A price, and when it counts. Months and hours may run over the end: 22 to 6 is a night.

    `to_month` belongs to it, `to_hour` does not; `days` are ISO weekdays, Monday is 1. None is all.
    """

    price_per_kwh: Decimal
    from_month: int | None = None
    to_month: int | None = None
    days: str | None = None
    from_hour: int | None = None
    to_hour: int | None = None

    def covers(self, month: int, weekday: int, hour: int) -> bool:
        """Whether this price counts in an hour of a weekday of a month."""
        if self.days is not None and str(weekday) not in self.days:
            return False
        return _inside(month, self.from_month, self.to_month, closed=True) and _inside(
            hour, self.from_hour, self.to_hour, closed=False
        )


@dataclass(frozen=True, slots=True)
class Book:
    """Prices, settled: `spans` say which version counts for a meter when, `versions` what it asks.

    A version's prices are a list of `CELLS`; place `cell(month, weekday, hour)`.
    """

    spans: pa.Table
    versions: pa.Table


def cell(month: int, weekday: int, hour: int) -> int:
    """The place of an hour in a version's prices.

    >>> cell(1, 1, 0), cell(12, 7, 23)
    (0, 2015)
    """
    return ((month - 1) * 7 + weekday - 1) * 24 + hour


def make_book(meters: pa.Table, tariffs: pa.Table) -> Book:
    """Settle the contents of the two tables; two prices for the same thing are refused."""
    versions = _versions(tariffs.to_pylist())
    order = {key: number for number, key in enumerate(sorted(versions))}
    begins: dict[str, list[datetime]] = defaultdict(list)
    for tariff, valid_from in order:
        begins[tariff].append(valid_from)
    spans = [
        (meter, begin, end, order[tariff, version])
        for meter, tariff, begin, end in _assignments(meters.to_pylist())
        for version, begin, end in _cut(begins.get(tariff, []), begin, end)
    ]
    columns = list(zip(*spans, strict=True)) or [(), (), (), ()]
    names = ("meter", "valid_from", "valid_to", "version")
    kinds = (pa.string(), TIME, TIME, pa.int32())
    return Book(
        pa.table(
            {name: pa.array(column, kind)
             for name, column, kind in zip(names, columns, kinds, strict=True)}
        ),
        pa.table(
            {
                "version": pa.array(list(order.values()), pa.int32()),
                "tariff": pa.array([tariff for tariff, _ in order], pa.string()),
                "prices": pa.array([versions[key] for key in order], pa.list_(PRICE)),
            }
        ),
    )  # fmt: skip


def band_row(tariff: str, valid_from: datetime, number: int, band: Band) -> dict[str, Any]:
    """A band as a row of the table `tariffs`."""
    return {"tariff": tariff, "valid_from": valid_from, "band": number, **band._asdict()}


def _versions(
    rows: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, datetime], list[Decimal | None]]:
    found: dict[tuple[str, datetime], dict[int, Band]] = defaultdict(dict)
    for row in rows:
        bands = found[row["tariff"], row["valid_from"]]
        if row["band"] in bands:
            raise Rejected(
                f"expected one band {row['band']} of tariff {row['tariff']!r} from "
                f"{row['valid_from']}, found two"
            )
        bands[row["band"]] = Band(**{name: row[name] for name in Band._fields})
    return {
        key: _cells([band for _, band in sorted(bands.items())]) for key, bands in found.items()
    }


def _cells(bands: Sequence[Band]) -> list[Decimal | None]:
    return [
        next((band.price_per_kwh for band in bands if band.covers(month, day, hour)), None)
        for month in range(1, 13)
        for day in range(1, 8)
        for hour in range(24)
    ]


def _assignments(
    rows: Iterable[Mapping[str, Any]],
) -> Iterable[tuple[str, str, datetime, datetime]]:
    """Who has which tariff from when until when."""
    by_meter: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for row in rows:
        by_meter[row["meter"]].append((row["valid_from"], row["tariff"]))
    for meter, found in by_meter.items():
        found.sort()
        ends = [begin for begin, _ in found[1:]] + [FOREVER]
        for (begin, tariff), end in zip(found, ends, strict=True):
            if begin == end:
                raise Rejected(f"expected one tariff of meter {meter!r} from {begin}, found two")
            yield meter, tariff, begin, end


def _cut(
    versions: Sequence[datetime], begin: datetime, end: datetime
) -> Iterable[tuple[datetime, datetime, datetime]]:
    """The versions that count within a span, and their shares of it."""
    first = bisect_right(versions, begin) - 1
    for number in range(max(first, 0), len(versions)):
        until = versions[number + 1] if number + 1 < len(versions) else FOREVER
        since, upto = max(begin, versions[number]), min(end, until)
        if since < upto:
            yield versions[number], since, upto


def _inside(value: int, start: int | None, stop: int | None, *, closed: bool) -> bool:
    if start is None or stop is None:
        return True
    last = stop if closed else stop - 1
    return start <= value <= last if start <= stop else value >= start or value <= last
