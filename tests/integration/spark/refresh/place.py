"""One warehouse under test whose tables are made by Spark, and checked by DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.app.tables import Warehouse
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.frontier import LakePosition
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import CACHE, QUICK, one_spark
from tests.integration.tables.place import Place
from tests.waiting import wait_until

FAULTY = "tests.integration.spark.refresh.engine:make"
SPARK = "penstock.spark.refresh:make"
PATIENCE_S = 300.0
"""Starts of Spark are part of some waits, on machines that may be busy."""

OWN: dict[str, Any] = {"cores": 2, "memory_mb": 512, "cache_dir": str(CACHE), "conf": QUICK}
"""Options of a Spark that the coordinator starts by itself."""


class SparkPlace(Place):
    """On the Spark that all tests share, with faults; `own` on one that its coordinator starts.

    `remote` is another way to the Spark that is shared.
    """

    def __init__(
        self,
        address: str,
        home: Path,
        *,
        own: bool = False,
        remote: str | None = None,
        **settings: Any,
    ) -> None:
        self.own, self._remote = own, remote
        self.runner = SPARK if own else FAULTY
        settings = {"retry": FailurePolicy(base_ms=20, cap_ms=200), **settings}
        super().__init__(address, home, **settings)

    def open(self, **settings: Any) -> Warehouse:
        self.options = OWN if self.own else self._shared()
        return Warehouse.open(
            self.address,
            self.data_path,
            runner=self.runner,
            runner_options=self.options,
            **{**self.settings, **settings},
        )

    def _shared(self) -> dict[str, Any]:
        return {"remote": self._remote or one_spark().url, "faults": str(self.faults)}

    def until(self, condition: Callable[[], object], what: str = "it") -> None:
        wait_until(condition, what, patience_s=PATIENCE_S)

    @contextmanager
    def duck(self) -> Iterator[Duck]:
        with Duck(self.address) as opened:
            yield opened

    def check_contents(self) -> None:
        """DuckDB says of every table that it is its query at its frontier."""
        frontiers = self.frontiers()
        with self.duck() as duck:
            for table in self.warehouse.tables():
                frontier, position = frontiers[table.name]
                inputs = ", ".join(
                    f"{source} AS (SELECT * FROM lake.main.{source} AT (VERSION => {at.snapshot}))"
                    for source, at in frontier.items()
                    if isinstance(at, LakePosition)
                )
                expected = bag(duck.run(f"WITH {inputs} {table.query}"))
                assert position is not None
                at = f"AT (VERSION => {position.snapshot})"
                found = bag(duck.run(f"SELECT * FROM lake.main.{table.name} {at}"))
                assert found == expected, (
                    f"{table.name} at {position} of {frontier}: {found - expected} too many, "
                    f"{expected - found} missing"
                )
                assert bag(duck.run(f"SELECT * FROM lake.main.{table.name}")) == expected
