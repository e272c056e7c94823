"""A directory to type commands in, with a lake that the cluster sees, and programs that run on."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Self

import pyarrow as pa

from penstock.client import Client, Record
from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.metering.readings import Reading, encode_packed
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace
from tests.spark_cluster.cluster import PATIENCE_S
from tests.waiting import wait_until


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without settings of Penstock."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return kept | dict(more or {})


def penstock(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type one command."""
    return subprocess.run(
        (sys.executable, "-m", "penstock", *words), cwd=home, env=environment(), check=False,
        capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


class Running:
    """A command that runs until it is told to end; what it says is kept."""

    def __init__(self, home: Path, *words: str) -> None:
        self._said = home / f"{'-'.join(words[:2])}.log"
        with self._said.open("wb") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "penstock", *words), cwd=home, env=environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def ends(self) -> int:
        """Its exit status, when it ends by itself."""
        return self.process.wait(PATIENCE_S)


def write(lake: Catalog, source: str, rows: Iterable[int]) -> None:
    """Append numbers to a source of a lake."""
    data = pa.table({"id": pa.array(rows, pa.int64())})
    change = lake.begin(reserve_ms=60_000)
    try:
        table = lake.table(source)
    except Rejected:
        table = change.create_table(lake.schema("main"), source, data.schema)
    change.add_files(table, [lake.write(table, data, token=change.token)])
    lake.commit(change)


def rows(lake: Catalog, table: str) -> int:
    """How many rows a table has; -1 where there is none."""
    try:
        return int(lake.scan(table).num_rows)
    except Rejected:
        return -1


def until_rows(lake: Catalog, table: str, count: int, running: Running | None = None) -> None:
    def are_there() -> bool:
        if running is not None:
            assert running.process.poll() is None, running.said
        return rows(lake, table) == count

    wait_until(are_there, f"{count} rows in {table}", patience_s=PATIENCE_S)


def fill(client: Client, url: str, count: int, *, after: int = 0) -> None:
    """Messages of one meter into the raw topic, and a price for it; `after` so many before."""
    since = "2020-01-01T00:00:00+00:00"
    if not after:
        client.put_topic("ingest.raw")
        with TariffSpace(url) as there:
            flat = {"valid_from": since, "kind": "flat", "price_per_kwh": "0.3"}
            there.load(Sheet({"flat": {"versions": [flat]}}, [Row("1", "flat", since)]))
    client.write("ingest.raw", [_message(after + number) for number in range(count)])


def _message(number: int) -> Record:
    payload = encode_packed([Reading("1", 1_700_000_000_000 + number, Decimal(1))])
    return Record(base64.b64encode(payload).decode(), node="device", tag=str(number))
