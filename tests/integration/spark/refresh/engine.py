"""Spark as the engine, with things that go wrong on purpose.

A file in `options["faults"]`, named after a table, says what: `retryable`, `permanent`, `hold` (it
waits until the file is gone), or `die STEP`: this process is killed at a step of the unit that the
table belongs to. Steps are `start` and `made` (before and after the table's own refresh), `commit`,
`statement N` (inside the transaction) and `committed`; of a differential refresh also `ran`,
`located` and `fed`. The file is gone before anybody dies, so
that it happens once. Tables named `spread` are written by Spark's tasks, however small they are.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.spark import refresh
from penstock.spark.delta import apply as delta_apply
from penstock.spark.delta import refresh as delta_refresh
from penstock.spark.lake.writing import WriteOptions
from penstock.spark.options import spark_options
from penstock.tables.engine import Made, RefreshTask

preload = refresh.preload


class FaultyEngine(refresh.SparkEngine):
    def __init__(self, lake: Catalog, options: Mapping[str, Any]) -> None:
        given = dict(options)
        self._faults = Path(given.pop("faults"))
        self._interrupted = threading.Event()
        super().__init__(lake, spark_options(given))
        self._spread = refresh.FullRefresh(lake, write=WriteOptions(collect_rows_max=0))

    def refresh(self, task: RefreshTask) -> Made:
        self._interrupted.clear()
        fault = Fault(self._faults / task.definition.name)
        fault.die_at("start")
        self._misbehave(task.definition.name, fault)
        with fault.inside():
            made = self._make(task)
        fault.die_at("made")
        fault.die_in_commit(self._lake)
        return made

    def _make(self, task: RefreshTask) -> Made:
        if task.definition.name != "spread":
            return super().refresh(task)
        with self._used(task.definition.query) as spark:
            return self._spread.refresh(spark, task)

    def interrupt(self) -> None:
        self._interrupted.set()
        super().interrupt()

    def _misbehave(self, table: str, fault: Fault) -> None:
        match fault.word:
            case "retryable":
                raise OSError(f"{table} could not be read")
            case "permanent":
                raise Rejected(f"the query of {table} is wrong")
            case "hold":
                (self._faults / f"{table}.held").touch()
                while fault.file.exists():
                    if self._interrupted.wait(0.01):
                        raise InterruptedError("told to give up")


class Fault:
    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text() if file.exists() else ""
        self.word, _, self.step = text.partition(" ")

    def die_at(self, step: str) -> None:
        if self.word == "die" and self.step == step:
            self.die()

    def die(self) -> None:
        self.file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be killed after a step of a differential refresh."""
        steps = {"ran": "in_lake_types", "located": "locate", "fed": "write_feed"}
        name = steps.get(self.step) if self.word == "die" else None
        if name is None:
            yield
            return
        module: Any = delta_refresh if self.step == "ran" else delta_apply
        function = getattr(module, name)

        def dying(*arguments: Any) -> Any:
            found = function(*arguments)
            self.die()
            return found

        setattr(module, name, dying)
        try:
            yield
        finally:
            setattr(module, name, function)

    def die_in_commit(self, lake: Catalog) -> None:
        """Be killed at some point of the next commit."""
        if self.word != "die" or not self.step.startswith(("commit", "statement")):
            return
        commit = lake.commit

        def dying(transaction: Any) -> Any:
            self.die_at("commit")
            if self.step.startswith("statement"):
                self._count_down(lake, int(self.step.split()[1]))
            found = commit(transaction)
            self.die_at("committed")
            return found

        lake.commit = dying  # type: ignore[method-assign]

    def _count_down(self, lake: Catalog, number: int) -> None:
        """Be killed at so many statements of the next write transaction."""
        write, left = lake.database.write, iter(range(number))

        @contextmanager
        def counted(**how: Any) -> Iterator[Any]:
            with write(**how) as cursor:
                yield Counting(cursor, lambda: next(left, None) is None and self.die())

        lake.database.write = counted  # type: ignore[method-assign]


class Counting:
    """A cursor that tells of every statement before it is run."""

    def __init__(self, cursor: Any, tell: Callable[[], object]) -> None:
        self._cursor, self._tell = cursor, tell

    def execute(self, *arguments: Any) -> Any:
        self._tell()
        return self._cursor.execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self._tell()
        return self._cursor.executemany(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def make(lake: Catalog, options: Mapping[str, Any]) -> FaultyEngine:
    return FaultyEngine(lake, options)
