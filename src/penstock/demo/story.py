"""The demonstration's scenario: a fleet of meters, their tariffs, and the tables.

`usage_per_hour` and `charges_per_meter` both read `districts` and feed `district_totals`: a
diamond, whose three tables change in one snapshot of the lake.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.metering.fleet import Fleet
from penstock.metering.shapes import Day
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace

FLEET: Final = Fleet(devices=40, meters=50, seed=7)
LOAD: Final = Day(low_per_s=240, high_per_s=840, period_ms=30_000)
"""Messages per second over a day that takes half a minute."""
USUAL_PER_S: Final = 400
"""Their mean: 20,000 readings per second."""
BURST: Final = 5.0
DISTRICTS: Final = ("harbour", "hill", "market", "mill", "station")

TABLES: Final = {
    "usage_per_hour": """\
SELECT d.district, date_trunc('hour', r.time) AS hour,
       sum(r.energy_wh) AS energy_wh, count(*) AS readings
FROM readings r JOIN districts d ON d.meter = r.meter
GROUP BY d.district, date_trunc('hour', r.time)""",
    "charges_per_meter": """\
SELECT d.district, c.meter, sum(c.charge) AS charge, count(*) AS charges
FROM charges c JOIN districts d ON d.meter = c.meter
GROUP BY d.district, c.meter""",
    "district_totals": """\
SELECT c.district, c.meters, c.charge, u.energy_wh
FROM (SELECT district, count(*) AS meters, sum(charge) AS charge
      FROM charges_per_meter GROUP BY district) c
JOIN (SELECT district, sum(energy_wh) AS energy_wh
      FROM usage_per_hour GROUP BY district) u
  ON u.district = c.district""",
}
SCHEDULE: Final = "2s"


SINCE: Final = "2020-01-01"
_NIGHT: Final = {"hours": "22-6", "price_per_kwh": "0.19"}
TARIFFS: Final[dict[str, Any]] = {
    "flat": {"versions": [{"valid_from": SINCE, "kind": "flat", "price_per_kwh": "0.31"}]},
    "night": {
        "versions": [
            {"valid_from": SINCE, "kind": "time_of_use", "bands": [_NIGHT], "otherwise": "0.36"}
        ]
    },
}
"""Half of the meters pay a flat rate, half of them less at night."""


def prepare_tariffs(url: str, fleet: Fleet) -> int:
    """Give every meter a tariff; returns the seq of the space at which all have one."""
    numbers = range(1, fleet.devices * fleet.meters + 1)
    rows = [Row(str(n), "night" if n % 2 else "flat", SINCE) for n in numbers]
    with TariffSpace(url) as there:
        seq = there.load(Sheet(TARIFFS, rows)).seq
    assert seq is not None
    return seq


def change_tariff(url: str, number: int) -> int | None:
    """Raise the flat rate, retroactively from the beginning."""
    price = f"{Decimal('0.31') + number * Decimal('0.005'):f}"
    version = {"valid_from": SINCE, "kind": "flat", "price_per_kwh": price}
    with TariffSpace(url) as there:
        return there.add("flat", [version]).seq


def prepare_lake(lake: Catalog, fleet: Fleet) -> None:
    """Give every meter a district."""
    numbers = range(1, fleet.devices * fleet.meters + 1)
    districts = [{"meter": str(n), "district": DISTRICTS[n % len(DISTRICTS)]} for n in numbers]
    shape = pa.schema([("meter", pa.string()), ("district", pa.string())])
    transaction = lake.begin()
    transaction.create_table(lake.schema("main"), "districts", shape)
    lake.commit(transaction)
    table = lake.table("districts")
    transaction = lake.begin()
    rows = pa.Table.from_pylist(districts, schema=shape)
    transaction.add_files(table, [lake.write(table, rows)])
    lake.commit(transaction)
