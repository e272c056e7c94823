"""What the demonstration is about: a fleet of meters, what their power costs, which tables follow.

`usage_per_hour` and `charges_per_meter` both read `districts` and feed `district_totals`: a
diamond, whose three tables change in one snapshot of the lake.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.ingest.fleet import Fleet
from penstock.ingest.shapes import Day
from penstock.lake.shell import Catalog

FLEET: Final = Fleet(devices=40, meters=25, seed=7)
LOAD: Final = Day(low_per_s=10, high_per_s=60, period_ms=30_000)
"""Messages a second over a day that takes half a minute."""
BURST: Final = 5.0
DISTRICTS: Final = ("harbour", "hill", "market", "mill", "station")

TABLES: Final = {
    "usage_per_hour": """\
SELECT d.district, r.meter, date_trunc('hour', r.time) AS hour,
       sum(r.energy_wh) AS energy_wh, count(*) AS readings
FROM readings r JOIN districts d ON d.meter = r.meter
GROUP BY d.district, r.meter, date_trunc('hour', r.time)""",
    "charges_per_meter": """\
SELECT d.district, c.meter, sum(c.charge) AS charge, count(*) AS charges
FROM charges c JOIN districts d ON d.meter = c.meter
GROUP BY d.district, c.meter""",
    "district_totals": """\
SELECT c.district, count(*) AS meters, sum(c.charge) AS charge, sum(u.energy_wh) AS energy_wh
FROM charges_per_meter c
JOIN (SELECT meter, sum(energy_wh) AS energy_wh FROM usage_per_hour GROUP BY meter) u
  ON u.meter = c.meter
GROUP BY c.district""",
}
SCHEDULE: Final = "2s"


def prepare_lake(lake: Catalog, fleet: Fleet) -> None:
    """Give every meter a tariff and a district: half pay the same all day, half less at night."""
    from penstock.spark.ingest.metering import create_tariff_tables
    from penstock.spark.ingest.tariffs import METERS, TARIFFS, Band, band_row

    create_tariff_tables(lake)
    since = datetime(2020, 1, 1, tzinfo=UTC)
    numbers = range(1, fleet.devices * fleet.meters + 1)
    tariffs = [
        band_row("flat", since, 1, Band(Decimal("0.31"))),
        band_row("night", since, 1, Band(Decimal("0.19"), from_hour=22, to_hour=6)),
        band_row("night", since, 2, Band(Decimal("0.36"))),
    ]
    meters = [
        {"meter": str(n), "tariff": "night" if n % 2 else "flat", "valid_from": since}
        for n in numbers
    ]
    districts = [{"meter": str(n), "district": DISTRICTS[n % len(DISTRICTS)]} for n in numbers]
    shape = pa.schema([("meter", pa.string()), ("district", pa.string())])
    transaction = lake.begin()
    transaction.create_table(lake.schema("main"), "districts", shape)
    lake.commit(transaction)
    _add(lake, "tariffs", tariffs, TARIFFS)
    _add(lake, "meters", meters, METERS)
    _add(lake, "districts", districts, shape)


def _add(lake: Catalog, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    table = lake.table(name)
    transaction = lake.begin()
    transaction.add_files(table, [lake.write(table, pa.Table.from_pylist(rows, schema=schema))])
    lake.commit(transaction)
