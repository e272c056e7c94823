"""Stream tables kept up to date by Spark over tables that DuckDB changes, and checked by DuckDB."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog
from penstock.spark.lake.types import for_spark
from penstock.tables.core.history import RefreshOutcome, RefreshRecord
from penstock.tables.core.model import Mode
from tests.integration.lake.agree import Bag, bag
from tests.integration.lake.duck import Duck


class Shop:
    """One warehouse; `create` makes tables, `refresh` brings them up to date one after another."""

    def __init__(
        self,
        address: str,
        lake: Catalog,
        duck: Duck,
        options: dict[str, Any],
        *,
        runner: str = "penstock.spark.refresh:make",
        **more: Any,
    ) -> None:
        self.lake, self.duck = lake, duck
        self.address, self.options = address, options
        self.scratch = f"{lake.data_path}scratch"
        self.warehouse = Warehouse.open(
            address, lake.data_path, runner=runner, runner_options=options, **more
        )
        self.names: list[str] = []
        self.asked: dict[str, str] = {}

    def create(self, name: str, query: str, *, duck: str | None = None, **options: Any) -> None:
        """A table; `duck` is its query as DuckDB understands it."""
        self.warehouse.create(name, query, **{"mode": "differential", **options})
        self.names.append(name)
        self.asked[name] = duck or query

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.duck.run(statement)

    def refresh(self, *names: str) -> dict[str, RefreshRecord]:
        """Bring tables up to date; what is on record of each that was refreshed."""
        made = {}
        for name in names or self.names:
            answer = self.warehouse.refresh(name)
            assert answer.ok, (name, answer.detail)
            made[name] = self.last(name)
        return made

    def last(self, name: str) -> RefreshRecord:
        found = self.warehouse.history(name, limit=1)[0]
        assert found.outcome is RefreshOutcome.SUCCEEDED, found
        return found

    def check(self, *names: str) -> None:
        """DuckDB says of each table that it is its query."""
        for name in names or self.names:
            held, wanted = self.contents(name), self.bag(name, self.duck.run(self.asked[name]))
            assert held == wanted, (name, held - wanted, wanted - held)

    def contents(self, name: str) -> Bag:
        return self.bag(name, self.duck.run(f"SELECT * FROM {name}"))

    def bag(self, name: str, rows: pa.Table) -> Bag:
        columns = self.lake.table(name).columns
        named = rows.rename_columns([column.name for column in columns])
        wanted = self.lake.table(name).arrow_schema
        return bag(for_spark(named.cast(wanted), columns))

    def settle(
        self, *names: str, executed: Mode | None = Mode.DIFFERENTIAL
    ) -> dict[str, RefreshRecord]:
        """Bring tables up to date and check them: rows, the executed mode, how much changed."""
        chosen = names or self.names
        before = {name: self._before(name) for name in chosen}
        made = self.refresh(*chosen)
        self.check(*chosen)
        if executed is not None:
            others = [record for record in made.values() if record.executed is not executed]
            assert not others, [(r.table, r.executed, r.reason, r.reason_text) for r in others]
        for name, record in made.items():
            last, held = before[name]
            if record.executed is Mode.DIFFERENTIAL and record.job_id != last:
                now = self.contents(name)
                moved = sum((now - held).values()) + sum((held - now).values())
                assert record.delta_rows == moved, (name, record.delta_rows, moved)
        return made

    def _before(self, name: str) -> tuple[int, Bag]:
        """The last refresh of a table, and its rows."""
        past = self.warehouse.history(name, limit=1)
        return (past[0].job_id, self.contents(name)) if past else (0, Bag())

    def close(self) -> None:
        self.warehouse.close()
