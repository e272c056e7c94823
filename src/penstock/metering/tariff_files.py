"""Tariffs and assignments as people keep them in files: TOML, JSON, and CSV for assignments.

In TOML and JSON `tariffs` are documents by name and `assignments` a list; a CSV has a header and a
row for each assignment. Numbers are read as decimals, so that `0.31` is a price like any other.

>>> sheet = parse_sheet("prices.toml", '''
... [[tariffs.flat.versions]]
... valid_from = 2026-01-01
... kind = "flat"
... price_per_kwh = 0.310
... ''')
>>> sheet.tariffs["flat"]["versions"]
[{'valid_from': '2026-01-01', 'kind': 'flat', 'price_per_kwh': '0.310'}]
>>> parse_sheet("meters.csv", "meter,tariff,valid_from\\n7,flat,2026-01-01\\n").assignments
[Row(meter='7', tariff='flat', valid_from='2026-01-01')]
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple

from penstock.metering.errors import BadTariff, about
from penstock.metering.tariffs import meter_id, tariff_id, with_versions

COLUMNS: Final = ("meter", "tariff", "valid_from")


class Row(NamedTuple):
    """A tariff for a meter from a day or a time on, as it was written."""

    meter: str
    tariff: str
    valid_from: str


@dataclass(slots=True)
class Sheet:
    """What a file has: documents of tariffs by name, and assignments."""

    tariffs: dict[str, dict[str, Any]] = field(default_factory=dict)
    assignments: list[Row] = field(default_factory=list)


def parse_sheet(name: str, text: str) -> Sheet:
    """What stands in a file, checked as far as it can be alone; `BadTariff` says what and where."""
    suffix = name.rpartition(".")[2].lower()
    try:
        if suffix == "csv":
            return Sheet(assignments=_csv_rows(text))
        if suffix == "toml":
            return _sheet(tomllib.loads(text, parse_float=Decimal))
        if suffix == "json":
            return _sheet(json.loads(text, parse_float=Decimal))
    except BadTariff as error:
        raise BadTariff(f"{name}: {error.message}") from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise BadTariff(f"{name}: malformed {suffix.upper()}: {error}") from error
    raise BadTariff(f"expected a file .toml, .json or .csv, found {name!r}")


def _sheet(found: Any) -> Sheet:
    _check(found, "tariffs and assignments", ("tariffs", "assignments"))
    sheet = Sheet()
    tariffs = _table(found.get("tariffs", {}), "tariffs by name")
    for name, found_tariff in tariffs.items():
        _check(found_tariff, f"versions of tariff {name!r}", ("versions", "zone"))
        tariff_id(name)
        document = _plain(found_tariff)
        with about(f"tariff {name!r}"):
            with_versions(None, document.get("versions", []), zone=document.get("zone"))
        sheet.tariffs[name] = document
    rows = found.get("assignments", [])
    if not isinstance(rows, list):
        raise BadTariff(f"expected a list of assignments, found {rows!r}")
    for number, row in enumerate(rows, start=1):
        where = f"assignment {number}"
        _check(row, f"{', '.join(COLUMNS)} in {where}", COLUMNS)
        sheet.assignments.append(_row({key: _plain(row.get(key)) for key in COLUMNS}, where))
    if not sheet.tariffs and not sheet.assignments:
        raise BadTariff("the file has neither tariffs nor assignments")
    return sheet


def _csv_rows(text: str) -> list[Row]:
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    header = [cell.strip() for cell in next(reader, [])]
    if sorted(header) != sorted(COLUMNS):
        raise BadTariff(f"expected the columns {','.join(COLUMNS)}, found {','.join(header)!r}")
    rows = []
    for cells in reader:
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise BadTariff(
                f"line {reader.line_num}: there are {len(header)} columns and {len(cells)} values"
            )
        found = {key: cell.strip() for key, cell in zip(header, cells, strict=True)}
        rows.append(_row(found, f"line {reader.line_num}"))
    if not rows:
        raise BadTariff("the file has no assignments")
    return rows


def _row(found: Mapping[str, Any], where: str) -> Row:
    for key in COLUMNS:
        if not isinstance(found[key], str) or not found[key]:
            raise BadTariff(f"{where}: expected a {key}, found {found[key]!r}")
    with about(where):
        meter_id(found["meter"])
    return Row(found["meter"], found["tariff"], found["valid_from"])


def _check(found: Any, what: str, known: Sequence[str]) -> None:
    unknown = [key for key in _table(found, what) if key not in known]
    if unknown:
        raise BadTariff(f"expected {what}, found {', '.join(map(repr, unknown))}")


def _table(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise BadTariff(f"expected {what}, found {found!r}")
    return found


def _plain(value: Any) -> Any:
    """The same with numbers and times as text, as documents have them."""
    match value:
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bool() | str() | None:
            return value
        case Decimal():
            return f"{value:f}"
        case date() | datetime() | time():
            return value.isoformat()
        case _:
            return str(value)
