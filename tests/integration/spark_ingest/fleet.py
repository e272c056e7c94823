"""Meters that send good and bad messages, and what must be in the lake for them.

What a reading costs is computed by DuckDB from the lake's tables with its own joins; what was read
is known to the fleet itself.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa

from penstock.client import Client, Record
from penstock.ingest.readings import Reading, encode_json, encode_packed
from penstock.lake.shell import Catalog
from penstock.spark.ingest.metering import create_tariff_tables
from penstock.spark.ingest.tariffs import METERS, TARIFFS, Band, band_row
from tests.integration.lake.duck import Duck

Key = tuple[str, str]
"""Device and message id."""

BEGIN = datetime(2026, 2, 26, tzinfo=UTC)
DAYS = 6
CHANGE = datetime(2026, 2, 28, 13, 30, tzinfo=UTC)
"""In the middle of the days, and of an hour, the tariffs change and some meters get another."""
KNOWN = 40
UNKNOWN = (900, 901)
BAD = (b"", b"\x9d\x01\x03", b"\x9d\x07\0\0\0\0\0\0", b"{}", b"[1]", b"\xff\xfe")

CHARGES = """
    WITH assigned AS (
        SELECT *, lead(valid_from) OVER (PARTITION BY meter ORDER BY valid_from) AS valid_to
        FROM meters),
    versions AS (
        SELECT *, lead(valid_from) OVER (PARTITION BY tariff ORDER BY valid_from) AS valid_to
        FROM (SELECT DISTINCT tariff, valid_from FROM tariffs)),
    local AS (SELECT *, make_timestamp(epoch_us(time)) AS t FROM readings),
    found AS (
        SELECT r.*, b.tariff, b.price_per_kwh, row_number() OVER (
            PARTITION BY r.device, r.message_id, r.row_no ORDER BY b.band) AS place
        FROM local r
        JOIN assigned a ON r.meter = a.meter AND r.time >= a.valid_from
            AND (a.valid_to IS NULL OR r.time < a.valid_to)
        JOIN versions v ON v.tariff = a.tariff AND r.time >= v.valid_from
            AND (v.valid_to IS NULL OR r.time < v.valid_to)
        JOIN tariffs b ON b.tariff = v.tariff AND b.valid_from = v.valid_from
        WHERE (b.from_hour IS NULL OR CASE WHEN b.from_hour <= b.to_hour
                THEN hour(t) >= b.from_hour AND hour(t) < b.to_hour
                ELSE hour(t) >= b.from_hour OR hour(t) < b.to_hour END)
          AND (b.from_month IS NULL OR CASE WHEN b.from_month <= b.to_month
                THEN month(t) BETWEEN b.from_month AND b.to_month
                ELSE month(t) >= b.from_month OR month(t) <= b.to_month END)
          AND (b.days IS NULL OR contains(b.days, isodow(t)::VARCHAR)))
    SELECT device, message_id, row_no, meter, time, energy_wh, tariff, price_per_kwh,
        round(energy_wh * price_per_kwh * 0.001::DECIMAL(4, 3), 6)::DECIMAL(24, 6) AS charge
    FROM found WHERE place = 1
"""
STORED = """SELECT device, message_id, row_no, meter, time, energy_wh, tariff, price_per_kwh, charge
    FROM charges"""


def fill_tariffs(lake: Catalog, meters: tuple[int, ...] | range = range(KNOWN)) -> None:
    """A flat, a time-of-use and a seasonal tariff; all change on one day, some meters too."""
    create_tariff_tables(lake)
    old = BEGIN - timedelta(days=400)
    bands = []
    for since, factor in ((old, Decimal(1)), (CHANGE, Decimal("1.1"))):
        found = {
            "flat": [Band(Decimal("0.3"))],
            "hours": [
                Band(Decimal("0.15"), from_hour=22, to_hour=6),
                Band(Decimal("0.2"), days="67"),
                Band(Decimal("0.41")),
            ],
            "seasons": [Band(Decimal("0.37"), from_month=10, to_month=2), Band(Decimal("0.22"))],
        }
        for tariff, listed in found.items():
            bands += [
                band_row(tariff, since, n, b._replace(price_per_kwh=b.price_per_kwh * factor))
                for n, b in enumerate(listed)
            ]
    names = ("flat", "hours", "seasons")
    assigned = [{"meter": str(m), "tariff": names[m % 3], "valid_from": old} for m in meters]
    assigned += [
        {"meter": str(m), "tariff": names[(m + 1) % 3], "valid_from": CHANGE}
        for m in meters if m % 5 == 0
    ]  # fmt: skip
    add(lake, "tariffs", pa.Table.from_pylist(bands, schema=TARIFFS))
    add(lake, "meters", pa.Table.from_pylist(assigned, schema=METERS))


def add(lake: Catalog, name: str, rows: pa.Table) -> None:
    table = lake.table(name)
    transaction = lake.begin()
    transaction.add_files(table, [lake.write(table, rows)])
    lake.commit(transaction)


class Fleet:
    """Sends messages to a raw topic and remembers them."""

    def __init__(self, client: Client, topic: str, random: Random) -> None:
        self._client, self._topic, self._random = client, topic, random
        self._next_id = 0
        self.sent: dict[Key, bytes] = {}
        self.readings: dict[Key, list[Reading]] = {}

    def send(self, count: int, *, bad: float = 0.05, unknown: float = 0.05) -> int:
        """Send so many messages, some of them twice; the topic's head afterwards."""
        records = []
        for _ in range(count):
            records.append(self._message(bad, unknown))
            if self._random.random() < 0.05:
                records.append(self._random.choice(records))
        return self._client.write(self._topic, records, return_seqs=False).last_seq

    def _message(self, bad: float, unknown: float) -> Record:
        random = self._random
        self._next_id += 1
        key = (f"device-{random.randrange(9)}", str(self._next_id))
        if random.random() < bad:
            payload = random.choice(BAD)
        else:
            readings = [self._reading(unknown) for _ in range(random.randrange(1, 8))]
            payload = encode_packed(readings) if random.random() < 0.7 else encode_json(readings)
            self.readings[key] = readings
        self.sent[key] = payload
        return Record(base64.b64encode(payload).decode(), node=key[0], tag=key[1])

    def _reading(self, unknown: float) -> Reading:
        random = self._random
        is_unknown = random.random() < unknown
        meter = random.choice(UNKNOWN) if is_unknown else random.randrange(KNOWN)
        time_ms = int(BEGIN.timestamp() * 1_000) + random.randrange(DAYS * 86_400_000)
        energy = Decimal(random.randrange(-1_000, 10**7)).scaleb(-3)
        return Reading(str(meter), time_ms, energy, random.randrange(2))

    def check(self, lake: Catalog, duck: Duck, *, meters: set[str] | None = None) -> None:
        """Every message is in the lake exactly once, as rows or as letters, and its price right."""
        meters = meters or {str(m) for m in range(KNOWN)}
        check_lake(lake, duck, self.sent, self.readings, meters)


def check_lake(
    lake: Catalog,
    duck: Duck,
    sent: Mapping[Key, bytes],
    readings: Mapping[Key, list[Reading]],
    meters: set[str],
) -> None:
    """The lake holds what was sent, once, and nothing else.

    `readings` has those of the messages that can be read; `meters` are the ones with a tariff.
    """
    found = Counter(
        (
            row["device"], row["message_id"], row["row_no"], row["meter"],
            round(row["time"].timestamp() * 1_000), row["energy_wh"], row["quality"],
        )
        for row in lake.scan("readings").to_pylist()
    )  # fmt: skip
    rows = [(*key, row, r) for key, listed in readings.items() for row, r in enumerate(listed)]
    expected = Counter(
        (device, message, row, r.meter, r.time_ms, r.energy_wh, r.quality)
        for device, message, row, r in rows
        if r.meter in meters
    )
    assert found == expected
    letters = lake.scan("dead_letters").to_pylist()
    told = Counter((row["device"], row["message_id"], row["row_no"]) for row in letters)
    dead = {(*key, None) for key in sent if key not in readings}
    dead |= {(*at, row) for *at, row, r in rows if r.meter not in meters}
    assert told == Counter(dead)
    for row in letters:
        assert row["payload"] == sent[row["device"], row["message_id"]]
    for one, other in ((CHARGES, STORED), (STORED, CHARGES)):
        differing = duck.value(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))")
        assert differing == 0, duck.rows(f"({one}) EXCEPT ALL ({other}) LIMIT 5")
    assert duck.value("SELECT count(*) FROM charges") == sum(found.values())
