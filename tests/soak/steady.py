"""Ten minutes of readings, a load for each: `python -m tests.soak.steady --minutes 10`.

After every minute, when all of it is stored, it prints how late readings were visible, the memory
of each process, how many files the tables have, and how long a commit to the catalog takes. It
fails if the last minute is worse than the second: delays above 1.2 times, or a slower catalog. It
also fails if the least memory of the last minutes is above that of the first warm ones, if there
are files that upkeep does not merge, or if a reading is not in the lake.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench import servers
from bench.bench_ingest import Place, ingest, load_tariffs, tree
from bench.ingest_load import READINGS
from penstock.client import Client
from penstock.kernel.units import MIB
from penstock.lake.catalog import Catalog, open_catalog

TABLES = ("readings", "charges")
DELAY_MAX = 1.2
MEMORY_MAX = 1.15
CATALOG_MAX = 1.5
PROBE = "soak_probe"
ROWS = pa.table({"n": [1]})
WARM, SOME = 3, 3
"""Minutes until a process has its size, and minutes in which its collector runs once."""
FILES_MAX = 400
"""Of both tables: what a few seconds bring, and what is merged of ten minutes."""
MINUTE_S = 60.0
KINDS = {"SparkSubmit": "jvm", "pyspark.daemon": "workers", "pipeline.upkeep": "upkeep"}


class Minute(NamedTuple):
    """What a minute was like."""

    p50_ms: float
    p99_ms: float
    per_s: float
    resident: dict[str, int]
    files: int
    catalog_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--rate", type=int, default=100_000, help="readings a second")
    arguments = parser.parse_args()
    with servers.penstock() as port:
        url = f"http://127.0.0.1:{port}"
        load_tariffs(url)
        with ingest(url) as place, open_catalog(place.catalog) as lake, Client(url) as client:
            minutes = []
            for number in range(arguments.minutes):
                minutes.append(one_minute(place, lake, arguments.rate))
                print(f"minute {number + 1}: {told(minutes[-1])}", flush=True)
            sent = client.get_topic("ingest.raw").head_seq * READINGS
            stored = [lake.scan(name, columns=["row_no"]).num_rows for name in TABLES]
    wrong = complaints(minutes, sent, stored)
    print("\n".join(wrong) or f"{sent:,} readings, each stored once, and nothing grew")
    sys.exit(bool(wrong))


def one_minute(place: Place, lake: Catalog, rate: int) -> Minute:
    found = place.steady(MINUTE_S, rate)
    p50_ms, p99_ms = np.percentile(found.delays_ms, (50, 99))
    resident: Counter[str] = Counter()
    for pid in tree(place.pid):
        resident[kind(pid)] += resident_bytes(pid)
    files = sum(len(lake.table_at(name).files) for name in TABLES)
    return Minute(float(p50_ms), float(p99_ms), found.readings / found.took_s, dict(resident),
                  files, commit_ms(lake))  # fmt: skip


def commit_ms(lake: Catalog) -> float:
    """The median of a few commits of one file each, as batches make them."""
    if PROBE not in {table.name for table in lake.tables()}:
        change = lake.begin()
        change.create_table(lake.schema("main"), PROBE, ROWS.schema)
        lake.commit(change)
    table, took = lake.table(PROBE), []
    for _ in range(20):
        change = lake.begin()
        change.add_files(table, [lake.write(table, ROWS)])
        began = time.perf_counter()
        lake.commit(change)
        took.append((time.perf_counter() - began) * 1_000)
    return statistics.median(took)


def kind(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "ended"
    return next((name for text, name in KINDS.items() if text in command), "driver")


def resident_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) * 1_024 if "VmRSS:" in text else 0


def told(minute: Minute) -> str:
    memory = ", ".join(f"{name} {size // MIB}" for name, size in sorted(minute.resident.items()))
    return (
        f"p50 {minute.p50_ms:.0f} ms, p99 {minute.p99_ms:.0f} ms, {minute.per_s:,.0f} readings/s, "
        f"{minute.files} files, catalog {minute.catalog_ms:.1f} ms, MiB: {memory}"
    )


def complaints(minutes: list[Minute], sent: int, stored: list[int]) -> list[str]:
    """What is wrong with a run; nothing is compared with the first minute, which warms up."""
    found = [f"{sent} readings sent, {count} stored" for count in stored if count != sent]
    found += [f"{minutes[-1].files} files" for _ in (1,) if minutes[-1].files > FILES_MAX]
    if len(minutes) < 3:
        return found
    second, last = minutes[1], minutes[-1]
    pairs = {
        "p50": (second.p50_ms, last.p50_ms, DELAY_MAX),
        "p99": (second.p99_ms, last.p99_ms, DELAY_MAX),
        "a commit": (second.catalog_ms, last.catalog_ms, CATALOG_MAX),
        **{f"memory of {name}": (floor(minutes[1:-1], name), floor(minutes[-SOME:], name),
                                 MEMORY_MAX) for name in second.resident},
    }  # fmt: skip
    for name, (before, after, most) in pairs.items():
        if after > most * before:
            found.append(f"{name}: {before:,.0f} at first, {after:,.0f} at last")
    return found


def floor(minutes: list[Minute], kind: str) -> int:
    """The least memory of processes after they are warm, which takes the JVM's heap minutes.

    The driver's grows until its collector runs, every few minutes: what grows for good lifts this.
    """
    warm = minutes[WARM - 1 : WARM - 1 + SOME] if len(minutes) >= WARM + SOME else minutes
    return min(each.resident.get(kind, 0) for each in warm)


if __name__ == "__main__":
    main()
