"""One warehouse under test: its sources, its engine's faults, and what its tables must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.app.tables import Warehouse
from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.scan import scan
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.frontier import Frontier, LakePosition
from tests.integration.tables.engine import DuckEngine, bag
from tests.waiting import wait_until

ENGINE = "tests.integration.tables.engine:make"
QUICK: dict[str, Any] = {
    "tick_ms": 20,
    "lease_ms": 3_000,
    "retry": FailurePolicy(base_ms=20, cap_ms=100),
    "yield_ms": 50,
    "max_concurrent_refreshes": 2,
    "max_workers": 2,
}


class Place:
    def __init__(self, address: str, home: Path, *, delta: bool = False, **settings: Any) -> None:
        self.faults = home / "faults"
        self.faults.mkdir(parents=True)
        self.address, self.data_path = address, str(home / "data")
        self.options = {"faults": str(self.faults), "delta": delta}
        self.settings = {**QUICK, **settings}
        self.warehouse = self.open()
        self.lake = self.warehouse.lake

    def open(self, **settings: Any) -> Warehouse:
        return Warehouse.open(
            self.address,
            self.data_path,
            runner=ENGINE,
            runner_options=self.options,
            **{**self.settings, **settings},
        )

    def close(self) -> None:
        self.warehouse.close()

    # sources

    def write(self, source: str, rows: Iterable[int]) -> int:
        """Append numbers to a source; returns the snapshot."""
        data = pa.table({"id": pa.array(rows, pa.int64())})
        while True:
            change = self.lake.begin(reserve_ms=60_000)
            try:
                table = self.lake.table(source)
            except Rejected:
                table = change.create_table(self.lake.schema("main"), source, data.schema)
            change.add_files(table, [self.lake.write(table, data, token=change.token)])
            try:
                snapshot = self.lake.commit(change).snapshot
            except Conflict:
                continue
            assert snapshot is not None
            return snapshot.id

    # what goes wrong

    def fault(self, table: str, text: str | None) -> None:
        if text is None:
            (self.faults / table).unlink(missing_ok=True)
        else:
            (self.faults / table).write_text(text)

    # what must be true

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return bag(self.lake.scan(table))

    def fresh(self) -> bool:
        """Whether every table stands for the newest state of everything it reads."""
        known = self.frontiers()
        tables = self.warehouse.tables()
        if any(table.name not in known for table in tables):
            return False
        at = {name: position for name, (_, position) in known.items()}
        for table in tables:
            for source in table.sources:
                now = at[source] if source in at else self.position(source)
                if known[table.name][0].get(source) != now:
                    return False
        return True

    def position(self, source: str) -> LakePosition:
        from penstock.tables.positions import Positions

        positions = Positions()
        with self.lake.look() as reader:
            positions.advance(reader)
            return positions.of_all(reader, [source])[source]

    def frontiers(self) -> dict[str, tuple[Frontier, LakePosition | None]]:
        rows = self.lake.query("SELECT table_name, frontier, snapshot FROM penstock_frontiers")
        return {
            name: (Frontier.from_json(text), None if at is None else LakePosition(at))
            for name, text, at in rows
        }

    def check_contents(self) -> None:
        """Every table equals its query at its frontier."""
        engine = DuckEngine(self.lake, {})
        frontiers = self.frontiers()
        for table in self.warehouse.tables():
            frontier, position = frontiers[table.name]
            inputs = {}
            for source, at in frontier.items():
                assert isinstance(at, LakePosition)
                inputs[source] = scan(self.lake.storage, self.lake.table_at(source, at.snapshot))
            expected = bag(engine._run(table.query, inputs))
            assert position is not None
            assert self.rows(table.name) == expected, f"{table.name} is not its query at {frontier}"
            assert bag(self.lake.scan(table.name, position.snapshot)) == expected

    def until(self, condition: Callable[[], object], what: str = "it") -> None:
        wait_until(condition, what)
