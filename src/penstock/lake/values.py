"""Values as the catalog stores them: text in DuckDB's format, converted to Arrow values.

Defaults, bounds and inlined rows are text (SQLite) or a mixture of text and native types
(PostgreSQL). Nested values are always text.

>>> read_value(Column(1, "s", "list", children=(Column(2, "element", "int32"),)), "[1, NULL, 3]")
[1, None, 3]
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from penstock.kernel.errors import Corrupt
from penstock.lake.columns import Column

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - both sides of the difference are without zone
_OFFSET: Final = re.compile(r"([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?$")
_SPAN: Final = re.compile(r"(-?\d+) (year|month|day)s?|(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?")
_BYTE: Final = re.compile(r"\\x([0-9A-Fa-f]{2})")
_NANO: Final = 1_000_000_000


def read_value(column: Column, value: Any) -> Any:
    """Convert a value from the catalog to what pyarrow takes for the column's type."""
    if value is None:
        return None
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, bytes) and column.type != "blob":
        value = value.decode()
    if column.is_nested:
        return _Nested(value).read(column) if isinstance(value, str) else value
    return _scalar(column.type, value)


def read_default(column: Column) -> Any:
    """The column's value in files older than the column."""
    return read_value(column, column.initial_default)


def _scalar(kind: str, value: Any) -> Any:
    reader = _READERS.get(kind.partition("(")[0])
    if reader is None:
        raise Corrupt(f"values of type {kind} have no text")
    try:
        return reader(value)
    except (ValueError, ArithmeticError, TypeError, AttributeError) as error:
        raise Corrupt(f"{value!r} is not the text of a {kind}") from error


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
    return bool(value)


def _blob(value: Any) -> bytes:
    if isinstance(value, str):
        parts = _BYTE.split(value)
        text, escapes = parts[0::2], parts[1::2]
        made = text[0].encode()
        for hexed, more in zip(escapes, text[1:], strict=True):
            made += bytes.fromhex(hexed) + more.encode()
        return made
    return bytes(value)


def _date(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _moment(value: Any, units: int) -> int:
    """A timestamp as a count since 1970 in UTC, with `units` per second."""
    text = value.isoformat(sep=" ") if isinstance(value, datetime) else value
    offset = _OFFSET.search(text, 11)
    shift = _shift(offset) if offset else timedelta()
    text = text[: offset.start()] if offset else text
    text, _, fraction = text.partition(".")
    seconds = round((datetime.fromisoformat(text) - shift - _EPOCH).total_seconds())
    return seconds * units + int(fraction.ljust(9, "0")[:9] or 0) * units // _NANO


def _shift(found: re.Match[str]) -> timedelta:
    sign = -1 if found[1] == "-" else 1
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    return sign * timedelta(hours=hours, minutes=minutes, seconds=seconds)


def _time(value: Any) -> time:
    if isinstance(value, time):
        return _in_utc(value)
    offset = _OFFSET.search(value)
    bare = value[: offset.start()] if offset else value
    head, dot, fraction = bare.partition(".")
    made = time.fromisoformat(head + (dot + fraction.ljust(6, "0") if dot else ""))
    return _in_utc(made.replace(tzinfo=timezone(_shift(offset)))) if offset else made


def _in_utc(value: time) -> time:
    """A time of day with an offset, converted to UTC as Parquet stores it."""
    if value.tzinfo is None:
        return value
    moment = datetime.combine(date(2000, 1, 1), value).astimezone(UTC)
    return moment.time()


def _interval(value: Any) -> pa.MonthDayNano:
    if isinstance(value, timedelta):
        return pa.MonthDayNano([0, value.days, value.seconds * _NANO + value.microseconds * 1_000])
    months = days = nanos = 0
    for count, unit, sign, hours, minutes, seconds, fraction in _SPAN.findall(value):
        if unit:
            months += int(count) * {"year": 12, "month": 1, "day": 0}[unit]
            days += int(count) if unit == "day" else 0
        else:
            whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
            nanos = whole * _NANO + int((fraction or "0").ljust(9, "0")[:9])
            nanos = -nanos if sign else nanos
    return pa.MonthDayNano([months, days, nanos])


def _uuid(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else UUID(value).bytes


_READERS: Final[dict[str, Any]] = {
    "boolean": _boolean,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "int128": float,
    "uint128": float,
    "float32": float,
    "float64": float,
    "decimal": Decimal,
    "time": _time,
    "timetz": _time,
    "date": _date,
    "timestamp": lambda value: _moment(value, 1_000_000),
    "timestamptz": lambda value: _moment(value, 1_000_000),
    "timestamp_s": lambda value: _moment(value, 1),
    "timestamp_ms": lambda value: _moment(value, 1_000),
    "timestamp_ns": lambda value: _moment(value, _NANO),
    "interval": _interval,
    "varchar": str,
    "json": str,
    "blob": _blob,
    "uuid": _uuid,
}


class _Nested:
    """Parses DuckDB's text of a struct `{'a': 1}`, list `[1, 2]` or map `{k=v}`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self, column: Column) -> Any:
        value = self._value(column, "")
        if self._text[self._at :].strip():
            raise self._broken(column)
        return value

    def _value(self, column: Column, stops: str) -> Any:
        self._skip()
        if not column.is_nested:
            text, quoted = self._word(stops)
            if not quoted and text == "NULL":
                return None
            return _scalar(column.type, text)
        if self._text.startswith("NULL", self._at):
            self._at += 4
            return None
        if column.type == "list":
            return self._items("[", "]", lambda: self._value(column.children[0], ",]"), column)
        if column.type == "map":
            return self._items("{", "}", lambda: self._pair(column), column)
        return self._struct(column)

    def _struct(self, column: Column) -> dict[str, Any]:
        children = {child.name: child for child in column.children}
        made: dict[str, Any] = {}

        def member() -> None:
            name, _ = self._word(":")
            self._expect(":", column)
            if name not in children:
                raise self._broken(column)
            made[name] = self._value(children[name], ",}")

        self._items("{", "}", member, column)
        return made

    def _pair(self, column: Column) -> tuple[Any, Any]:
        key = self._value(column.children[0], "=")
        self._expect("=", column)
        return key, self._value(column.children[1], ",}")

    def _items(self, opening: str, closing: str, item: Any, column: Column) -> list[Any]:
        self._expect(opening, column)
        found: list[Any] = []
        self._skip()
        while not self._text.startswith(closing, self._at):
            found.append(item())
            self._skip()
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip()
            elif not self._text.startswith(closing, self._at):
                raise self._broken(column)
        self._at += 1
        return found

    def _word(self, stops: str) -> tuple[str, bool]:
        """The next scalar's text, and whether it was quoted."""
        self._skip()
        if self._text.startswith("'", self._at):
            return self._quoted(), True
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in stops:
            self._at += 1
        return self._text[start : self._at].strip(), False

    def _quoted(self) -> str:
        made: list[str] = []
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] != "'":
            # A backslash escapes the quote or backslash after it.
            if self._text[self._at] == "\\" and self._text[self._at + 1 : self._at + 2] in (
                "'",
                "\\",
            ):
                self._at += 1
            made.append(self._text[self._at])
            self._at += 1
        self._at += 1
        return "".join(made)

    def _expect(self, mark: str, column: Column) -> None:
        self._skip()
        if not self._text.startswith(mark, self._at):
            raise self._broken(column)
        self._at += 1

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1] == " ":
            self._at += 1

    def _broken(self, column: Column) -> Corrupt:
        return Corrupt(
            f"{self._text!r} is not the text of a {column.type}, the type of column {column.name!r}"
        )
