"""The proof at the end of a demonstration: DuckDB opens the lake and counts independently.

A separate program, because DuckDB brings its own SQLite, and two of them in one process do not see
each other's locks: `python -m penstock.demo.proof` reads the claim from standard input and writes
its findings, both as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Unavailable

EXTENSIONS: Final = ("sqlite_scanner", "ducklake")
_ROWS_MAX: Final = 5_000
MISSING: Final = (
    "the check of the lake needs DuckDB and its ducklake extension: pip install 'penstock[demo]'"
)

_CHARGES = """
SELECT count(*), count(DISTINCT c.tariffs_seq), count(*) FILTER (
  p.price IS NULL OR c.price_per_kwh <> p.price
  OR c.charge <> round(c.energy_wh * p.price * 0.001::DECIMAL(4, 3), 6))
FROM charges c
LEFT JOIN assigned a ON a.seq = c.tariffs_seq AND a.meter = c.meter
LEFT JOIN prices p ON p.seq = c.tariffs_seq AND p.tariff = a.tariff AND p.hour = hour(c.time)
"""


def why_unprovable() -> str | None:
    """What a proof needs that is not installed; None if everything is."""
    is_missing = any(find_spec(f"duckdb_extension_{name}") is None for name in EXTENSIONS)
    return MISSING if is_missing else None


async def prove(catalog: str, claim: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """What is right and what is not, one sentence each."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-m", "penstock.demo.proof",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        asked = json.dumps({"catalog": catalog, **claim}).encode()
        answer, errors = await process.communicate(asked)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"DuckDB cannot read the lake: {said[-1] if said else 'it said nothing'}")
    return [(bool(right), str(text)) for right, text in json.loads(answer)]


def main() -> None:
    """Check one claim."""
    json.dump(_findings(json.load(sys.stdin)), sys.stdout)


def _findings(claim: dict[str, Any]) -> list[tuple[bool, str]]:
    import duckdb

    duck = duckdb.connect(config={"threads": 2})
    for name in EXTENSIONS:
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.origin is not None
        for path in Path(spec.origin).parent.glob(f"extensions/*/{name}.duckdb_extension"):
            duck.execute(f"LOAD '{path}'")
    duck.execute("SET TimeZone = 'UTC'")
    duck.execute(f"ATTACH 'ducklake:{claim['catalog']}' AS lake (READ_ONLY)")
    duck.execute("USE lake")
    found = [*_messages(duck, claim), _charges(duck, claim)]
    return [*found, *(_table(duck, name, query) for name, query in claim["tables"].items())]


def _messages(duck: Any, claim: dict[str, Any]) -> list[tuple[bool, str]]:
    rows = duck.execute(
        "SELECT device, count(*), count(DISTINCT message_id), "
        "count(DISTINCT (message_id, row_no)), min(message_id::UBIGINT), "
        "max(message_id::UBIGINT), sum(energy_wh)::DECIMAL(38, 3)::VARCHAR "
        "FROM readings GROUP BY device"
    ).fetchall()
    by_device = {device: rest for device, *rest in rows}
    meters = claim["meters"]
    wrong = 0
    for device, (count, energy) in claim["devices"].items():
        wanted = [count * meters, count, count * meters, 1, count, energy] if count else None
        wrong += by_device.pop(device, None) != wanted
    (dead,) = duck.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'dead_letters'"
    ).fetchone()
    letters = duck.execute("SELECT count(*) FROM dead_letters").fetchone()[0] if dead else 0
    messages = sum(count for count, _ in claim["devices"].values())
    told = f"{messages:,} messages acknowledged, {sum(row[1] for row in rows):,} readings in the"
    return [
        (
            not wrong and not by_device,
            f"{told} lake: each once, sums right for {len(claim['devices'])} devices"
            if not wrong and not by_device
            else f"{told} lake: WRONG for {wrong + len(by_device)} devices",
        ),
        (not letters, f"{letters:,} dead letters"),
    ]


def _charges(duck: Any, claim: dict[str, Any]) -> tuple[bool, str]:
    assigned, prices = [], []
    for seq, documents in claim["prices"].items():
        for entity, document in documents.items():
            kind, _, name = entity.partition(":")
            if kind == "meter":
                assigned.append((int(seq), name, document["assignments"][-1]["tariff"]))
            else:
                version = document["versions"][-1]
                prices += [(int(seq), name, hour, _price(version, hour)) for hour in range(24)]
    duck.execute("CREATE TEMP TABLE assigned (seq BIGINT, meter VARCHAR, tariff VARCHAR)")
    duck.execute(
        "CREATE TEMP TABLE prices (seq BIGINT, tariff VARCHAR, hour BIGINT, price DECIMAL(12, 6))"
    )
    duck.executemany("INSERT INTO prices VALUES (?, ?, ?, ?)", prices)
    for begin in range(0, len(assigned), _ROWS_MAX):
        part = assigned[begin : begin + _ROWS_MAX]
        places = ", ".join(["(?, ?, ?)"] * len(part))
        duck.execute(
            f"INSERT INTO assigned VALUES {places}", [each for row in part for each in row]
        )
    count, seqs, wrong = duck.execute(_CHARGES).fetchone()
    messages = sum(number for number, _ in claim["devices"].values())
    right = not wrong and count == messages * claim["meters"]
    times = f"tariffs as they were at {seqs} seqs" if seqs > 1 else "tariffs"
    return right, f"{count:,} charges computed again from the {times}: {wrong:,} differ"


def _price(version: dict[str, Any], hour: int) -> str:
    """What the demonstration's tariffs charge in an hour; their only band is one of hours."""
    if version["kind"] == "flat":
        return str(version["price_per_kwh"])
    (band,) = version["bands"]
    begin, _, end = band["hours"].partition("-")
    is_night = hour >= int(begin) or hour < int(end)
    return str(band["price_per_kwh"] if is_night else version["otherwise"])


def _table(duck: Any, name: str, query: str) -> tuple[bool, str]:
    (rows,) = duck.execute(f"SELECT count(*) FROM {name}").fetchone()
    (differing,) = duck.execute(
        f"SELECT count(*) FROM ((({query}) EXCEPT ALL (FROM {name})) UNION ALL "
        f"((FROM {name}) EXCEPT ALL ({query})))"
    ).fetchone()
    return not differing and rows > 0, f"{name}: {rows:,} rows, {differing:,} unlike its query"


if __name__ == "__main__":
    main()
