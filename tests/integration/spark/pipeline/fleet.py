"""Meters that send good and bad messages, and what must be in the lake for them.

What a reading costs is worked out anew, from the documents that its charge says it was priced
with; what was read is known to the fleet itself.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from penstock.client import Client, Record
from penstock.lake.catalog import Catalog
from penstock.metering.readings import Reading, encode_json, encode_packed
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace
from tests.integration.lake.duck import Duck
from tests.property.metering.naive_prices import charge_of, price_of

Key = tuple[str, str]
"""Device and message id."""

BEGIN = datetime(2026, 2, 26, tzinfo=UTC)
DAYS = 6
CHANGE = datetime(2026, 2, 28, 13, 30, tzinfo=UTC)
"""In the middle of the days, and of an hour, the tariffs change and some meters get another."""
OLD = BEGIN - timedelta(days=400)
KNOWN = 40
UNKNOWN = (900, 901)
BAD = (b"", b"\x9d\x01\x03", b"\x9d\x07\0\0\0\0\0\0", b"{}", b"[1]", b"\xff\xfe")
STORED = """SELECT device, message_id, row_no, meter, make_timestamp(epoch_us(time)) AS time,
    energy_wh, tariff, price_per_kwh, charge, tariffs_epoch, tariffs_seq FROM charges"""


def space_of(topic: str) -> str:
    """The space with the tariffs for the meters of a topic."""
    return f"{topic}.tariffs"


def fill_tariffs(url: str, topic: str, meters: tuple[int, ...] | range = range(KNOWN)) -> None:
    """A flat, a time-of-use and a seasonal tariff; all change on one day, some meters too."""
    tariffs: dict[str, Any] = {
        "flat": {"versions": []}, "hours": {"versions": []},
        "seasons": {"zone": "Europe/Berlin", "versions": []},
    }  # fmt: skip
    for since, factor in ((OLD, Decimal(1)), (CHANGE, Decimal("1.1"))):
        found = {
            "flat": {"kind": "flat", "price_per_kwh": price("0.3", factor)},
            "hours": {
                "kind": "time_of_use",
                "bands": [
                    {"hours": "22-6", "price_per_kwh": price("0.15", factor)},
                    {"hours": "6-22", "days": "sat,sun", "price_per_kwh": price("0.2", factor)},
                ],
                "otherwise": price("0.41", factor),
            },
            "seasons": {
                "kind": "seasonal",
                "bands": [{"months": "10-2", "price_per_kwh": price("0.37", factor)}],
                "otherwise": price("0.22", factor),
            },
        }
        for name, version in found.items():
            tariffs[name]["versions"].append({"valid_from": since.isoformat(), **version})
    names = ("flat", "hours", "seasons")
    rows = [Row(str(m), names[m % 3], OLD.isoformat()) for m in meters]
    rows += [Row(str(m), names[(m + 1) % 3], CHANGE.isoformat()) for m in meters if m % 5 == 0]
    with TariffSpace(url, space_of(topic)) as there:
        there.load(Sheet(tariffs, rows))


def price(text: str, factor: Decimal) -> str:
    return str(Decimal(text) * factor)


class Prices:
    """The documents of a space at any seq, as its server tells."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._space = client, space_of(topic)
        self.epoch = client.get_topic(self._space).epoch
        self._known: dict[int, dict[str, Any]] = {}

    def at(self, seq: int) -> dict[str, Any]:
        if seq not in self._known:
            found = self._client.list_entities(self._space, at_seq=seq)
            self._known[seq] = {state.entity: state.doc for state in found}
        return self._known[seq]


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
        prices = Prices(self._client, self._topic)
        check_lake(lake, duck, self.sent, self.readings, meters, prices)


def check_lake(
    lake: Catalog,
    duck: Duck,
    sent: Mapping[Key, bytes],
    readings: Mapping[Key, list[Reading]],
    meters: set[str],
    prices: Prices,
) -> None:
    """The lake holds what was sent, once, and nothing else; each charge is right by its documents.

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
    charges = duck.rows(STORED)
    check_charges(charges, prices)
    assert Counter((c["device"], c["message_id"], c["row_no"], c["meter"]) for c in charges) == (
        Counter(row[:4] for row in found.elements())
    )


def check_charges(charges: list[dict[str, Any]], prices: Prices) -> None:
    """Every charge is what its documents say."""
    for row in charges:
        at = row["time"].replace(tzinfo=UTC)
        wanted = price_of(prices.at(row["tariffs_seq"]), row["meter"], at)
        assert row["tariffs_epoch"] == prices.epoch, row
        assert (row["tariff"], row["price_per_kwh"]) == wanted, row
        assert row["charge"] == charge_of(row["energy_wh"], row["price_per_kwh"]), row
