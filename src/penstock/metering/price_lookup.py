"""A price book in a form that prices many readings at once, in Spark's Python workers.

Prices and energies are whole numbers of millionths. A product that 64 bits do not hold is worked
out with Python's integers, so every charge is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.metering.hours import CELLS

Ints = NDArray[np.int64]

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_QUARTER_US: Final = _HOUR_US // 4
_CYCLE: Final = timedelta(days=146_097)
"""400 years, after which the calendar repeats."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTERS_MAX: Final = 200_000
"""Offsets of a zone that a worker remembers."""
_PRODUCT_MAX: Final = 9.0e18
_SCALE: Final = 10**9
"""Millionths of Wh times millionths for a kWh, in millionths."""


class PricesFound(NamedTuple):
    """What a book says of readings: the list of each (-1 without), and its price in millionths."""

    lists: NDArray[np.int64]
    micro: Ints


class PriceLookup:
    """Which price counts for a meter at a time."""

    def __init__(self, spans: pa.Table, lists: pa.Table) -> None:
        self._meters, number = _numbered(spans["meter"])
        begins, ends = _micros(spans["valid_from"]), _micros(spans["valid_to"])
        self._begins = np.unique(begins)
        keys = self._keys(number, begins)
        order = np.argsort(keys, kind="stable")
        self._keys_sorted, self._number = keys[order], number[order]
        self._ends = ends[order]
        self._lists = spans["list"].to_numpy().astype(np.int64)[order]
        self.tariffs: pa.Array = lists["tariff"].combine_chunks()
        self.problems: pa.Array = lists["problem"].combine_chunks()
        self._prices = _matrix(lists["prices"])
        names = lists["zone"].to_pylist()
        zones = sorted(set(names))
        self._zones = [_Zone(name) for name in zones]
        self._zone_of = np.array([zones.index(name) for name in names], np.int64)

    @classmethod
    def load(cls, tables: Mapping[str, pa.Table]) -> PriceLookup:
        """The lookup of a book's tables."""
        return cls(tables["spans"], tables["lists"])

    def find(self, meters: pa.Array, times_us: Ints) -> PricesFound:
        """The list and the price of each reading; a list with a problem has no price."""
        lists = self._find_lists(meters, times_us)
        micro = np.zeros(len(lists), np.int64)
        known = np.flatnonzero(lists >= 0)
        if len(known):
            zones = self._zone_of[lists[known]]
            for number in np.unique(zones).tolist():
                places = known[zones == number]
                local_us = self._zones[number].local(times_us[places])
                micro[places] = self._prices[lists[places], cells(local_us)]
        return PricesFound(lists, micro)

    def _find_lists(self, meters: pa.Array, times_us: Ints) -> NDArray[np.int64]:
        """The last span of the meter that begins by then, if it has not ended."""
        if not len(self._keys_sorted):
            return np.full(len(times_us), -1, np.int64)
        number = pc.fill_null(pc.index_in(meters, value_set=self._meters), -1).to_numpy()
        number = number.astype(np.int64)
        places = np.searchsorted(self._keys_sorted, self._keys(number, times_us), "right") - 1
        at = np.maximum(places, 0)
        is_found = (number >= 0) & (places >= 0) & (self._number[at] == number)
        is_found &= times_us < self._ends[at]
        return np.where(is_found, self._lists[at], -1)

    def _keys(self, number: NDArray[np.int64], times_us: Ints) -> Ints:
        """One number that orders by meter and then by time, as far as spans tell times apart."""
        ranks = np.searchsorted(self._begins, times_us, "right")
        return number * (len(self._begins) + 1) + ranks


def cells(local_us: Ints) -> Ints:
    """The place of each local time among the prices of a list; see `hours.cell`."""
    days = local_us // _DAY_US
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
    weekdays = (days + 3) % 7  # the first of 1970 was a Thursday
    hours = local_us // _HOUR_US % 24
    return (months * 7 + weekdays) * 24 + hours


def charges(energy: Ints, price: Ints) -> pa.Array:
    """Energy in millionths of a Wh times price in millionths for a kWh, as decimals.

    Rounded to millionths, halves away from nothing.
    """
    sizes = np.abs(energy.astype(np.float64)) * np.abs(price.astype(np.float64))
    large = np.flatnonzero(sizes >= _PRODUCT_MAX)
    product = energy * np.where(sizes < _PRODUCT_MAX, price, 0)
    rounded = np.sign(product) * ((np.abs(product) + _SCALE // 2) // _SCALE)
    halves = _halves(rounded)
    for place in large.tolist():
        exact = int(energy[place]) * int(price[place])
        whole = (abs(exact) + _SCALE // 2) // _SCALE * (1 if exact >= 0 else -1)
        halves[place] = whole & (1 << 64) - 1, (whole >> 64) & (1 << 64) - 1
    return _decimals(halves, CHARGE)


CHARGE: Final = pa.decimal128(24, 6)


def decimals(micro: Ints, kind: pa.DataType) -> pa.Array:
    """Millionths as decimals, without a detour over texts."""
    return _decimals(_halves(micro), kind)


def micros_of(energies: pa.Array) -> Ints:
    """Decimals with six places as millionths; at most 18 digits, so the low halves have them."""
    halves = np.frombuffer(energies.buffers()[1], np.int64)
    first = energies.offset
    return halves.reshape(-1, 2)[first : first + len(energies), 0]


def _halves(micro: Ints) -> NDArray[np.uint64]:
    """The low and the high 64 bits of each number."""
    halves = np.empty((len(micro), 2), np.int64)
    halves[:, 0] = micro
    halves[:, 1] = halves[:, 0] >> 63
    return halves.view(np.uint64)


def _decimals(halves: NDArray[np.uint64], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(halves), [None, pa.py_buffer(halves)])


class _Zone:
    """A time zone: the local time of many moments at once.

    Offsets are asked for each quarter of an hour that occurs. Where one changes within a quarter,
    which only happened long ago, each moment is asked for.
    """

    def __init__(self, name: str) -> None:
        self._zone = None if name == "UTC" else ZoneInfo(name)
        self._known: dict[int, int | None] = {}

    def local(self, times_us: Ints) -> Ints:
        if self._zone is None:
            return times_us
        quarters, inverse = np.unique(times_us // _QUARTER_US, return_inverse=True)
        found = [self._offset_in(quarter) for quarter in quarters.tolist()]
        offsets = np.array([each or 0 for each in found], np.int64)[inverse]
        for number in (number for number, each in enumerate(found) if each is None):
            for place in np.flatnonzero(inverse == number).tolist():
                offsets[place] = self._offset_at(int(times_us[place]))
        return times_us + offsets

    def _offset_in(self, quarter: int) -> int | None:
        """The offset in a quarter of an hour; None if it changes."""
        if quarter not in self._known:
            if len(self._known) >= _QUARTERS_MAX:
                self._known.clear()
            first = self._offset_at(quarter * _QUARTER_US)
            last = self._offset_at((quarter + 1) * _QUARTER_US - 1)
            self._known[quarter] = first if first == last else None
        return self._known[quarter]

    def _offset_at(self, time_us: int) -> int:
        """The offset from UTC in microseconds."""
        # The first and last years have local times that no date holds; those before and after do.
        shift = timedelta(0)
        if not _FIRST_US <= time_us <= _LAST_US:
            shift = _CYCLE if time_us < 0 else -_CYCLE
        at = _EPOCH + (timedelta(microseconds=time_us) + shift)
        offset = at.astimezone(self._zone).utcoffset() or timedelta(0)
        return offset // timedelta(microseconds=1)


_FIRST_US: Final = int((datetime(2, 1, 1, tzinfo=UTC) - _EPOCH) / timedelta(microseconds=1))
_LAST_US: Final = int((datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) / timedelta(microseconds=1))


def _numbered(meters: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """The meters there are, and for each span the number of its meter."""
    names = pc.unique(meters)
    number = pc.index_in(meters, value_set=names).to_numpy().astype(np.int64)
    return names, number


def _micros(times: pa.ChunkedArray) -> Ints:
    found: Ints = times.cast(pa.int64()).to_numpy()
    return found


def _matrix(prices: pa.ChunkedArray) -> NDArray[Any]:
    """The prices of every list in millionths; zeros where a list has none."""
    made = np.zeros((len(prices), CELLS), np.int64)
    for number, row in enumerate(prices):
        if row.is_valid:
            made[number] = micros_of(row.values)
    return made
