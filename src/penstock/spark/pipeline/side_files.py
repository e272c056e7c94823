"""Side inputs of steps as files beside the tables, where every executor finds them.

One version is written once, however many batches go by it. The files are reserved like those of a
batch, so a sweep spares them; what a pipeline that died has left is swept when its reservation has
run out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow.parquet as pq

from penstock.lake.catalog import Catalog
from penstock.lake.model import joined
from penstock.spark.pipeline.definition import ArrowStep, SideInput
from penstock.spark.pipeline.store import RESERVE_MS
from penstock.spark.pipeline.task import SideFiles, TaskStep

DIRECTORY: Final = "penstock-side/"
KEPT: Final = 2
"""Versions that stay: a task of an abandoned attempt may still read the last but one."""


class SideStore:
    """The side inputs of one pipeline. For one thread."""

    def __init__(self, lake: Catalog) -> None:
        self._lake = lake
        self._token: str | None = None
        self._until_ms = 0
        self._written: dict[str, SideFiles] = {}

    def steps(self, steps: Iterable[tuple[str, ArrowStep]]) -> tuple[TaskStep, ...]:
        """Arrow steps as tasks run them, with their side inputs where tasks find them."""
        return tuple(
            TaskStep(stage, step.function, None if step.side is None else self.files(step.side))
            for stage, step in steps
        )

    def files(self, side: SideInput) -> SideFiles:
        """Where a side input lies; it is written if it is new."""
        self._hold()
        found = self._written.get(side.version)
        if found is None:
            found = self._written[side.version] = self._write(side)
            while len(self._written) > KEPT:
                self._remove(next(iter(self._written)))
        return found

    def close(self) -> None:
        """Remove all of them."""
        for version in list(self._written):
            self._remove(version)

    def _hold(self) -> None:
        """Renew the reservation in good time; if it has run out, the files are written again."""
        now_ms = self._lake.clock.monotonic_ms()
        if now_ms < self._until_ms:
            return
        if self._token is None or not self._lake.extend(self._token, RESERVE_MS):
            self._token = self._lake.reserve(RESERVE_MS)
            self._written.clear()
        self._until_ms = now_ms + RESERVE_MS // 2

    def _write(self, side: SideInput) -> SideFiles:
        storage = self._lake.storage
        directory = joined(self._lake.data_path, DIRECTORY)
        storage.create_directory(directory)
        paths = {}
        for name, rows in side.tables.items():
            file = f"penstock-{self._token}-{side.version}-{name}.parquet"
            paths[name] = joined(directory, file)
            with storage.open_output(paths[name]) as sink:
                pq.write_table(rows, sink, compression="zstd")
        return SideFiles(side.version, paths, side.load)

    def _remove(self, version: str) -> None:
        for path in self._written.pop(version).paths.values():
            self._lake.storage.remove(path)
