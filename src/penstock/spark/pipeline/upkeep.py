"""Merges the small files that batches leave, beside the pipeline and never in its way.

It runs in a process of its own, which yields the processor to everything else and ends with the
process that started it. Merging changes no rows: readers of any snapshot see the same, from fewer
files. Files are merged in tiers, so that what was merged is not read again for every few batches,
and few at a time, so that the catalog is never locked for long.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import IO, Final, Self

from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Conflict, PenstockError, Rejected
from penstock.kernel.units import MIB
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.expire import SNAPSHOTS_KEPT_MS, before, clean, expire, sweep

TIERS: Final = (
    CompactionPolicy(small_bytes=2 * MIB, target_bytes=16 * MIB, files_min=16, files_max=64),
    CompactionPolicy(
        least_bytes=2 * MIB, small_bytes=16 * MIB, target_bytes=128 * MIB, files_min=8, files_max=48
    ),
)
"""A file is in one tier. If the second took files of the first as well, it would find enough of
them every second, and write its own, which are much larger, from scratch each time.
"""
EVERY_S: Final = 1.0
CLEAN_EVERY_S: Final = 60.0
GRACE_MS: Final = 3_600_000
"""Files that no snapshot names stay for so long: a reader may still have them open."""
STEADY_S: Final = 60.0
"""A process that ran for so long is well; its next end is the first one again."""
_PAUSES: Final = Backoff(1_000, 60_000, 0.5, float("inf"))
_RANDOM: Final = Random()
_NICE: Final = 10
_END_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


def tidy(lake: Catalog, names: Sequence[str], *, tiers: Sequence[CompactionPolicy] = TIERS) -> int:
    """Merge once what is worth it in each table; how many files were merged."""
    return sum(_merged(lake, names, policy) for policy in tiers)


def _merged(lake: Catalog, names: Sequence[str], policy: CompactionPolicy) -> int:
    merged = 0
    for name in names:
        with suppress(Conflict):  # a writer was quicker; the next time will do
            merged += compact(lake, name, policy).files_merged
    return merged


class Upkeep:
    """The process that keeps the tables of a pipeline tidy, for a `with` block.

    A thread begins it again, with growing pauses, if it ends before the block does: a lake that
    nothing merges becomes slow within hours, and there is no other sign of it.
    """

    def __init__(
        self,
        address: str,
        data_path: str | None,
        names: Sequence[str],
        *,
        kept_ms: int | None = None,
    ) -> None:
        self.trouble: str | None = None
        """Why nothing may be merged now, or None."""
        self._order = {
            "address": address, "data_path": data_path, "names": list(names), "kept_ms": kept_ms,
        }  # fmt: skip
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watching = threading.Thread(target=self._watch, name="upkeep", daemon=True)

    def __enter__(self) -> Self:
        self._process = self._begun()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # from now on no other process begins
            self._over.set()
            process = self._process
        if process is not None:
            _end(process)
        self._watching.join(_END_S)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return None if self._process is None else self._process.pid

    def _begun(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock.spark.pipeline.upkeep"]
        # A separate session: Ctrl-C reaches only us. The order may hold a password: by the pipe.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        if process.stdin is not None:
            with suppress(OSError):  # it has ended already: that is seen where it is watched
                process.stdin.write(json.dumps(self._order).encode() + b"\n")
                process.stdin.flush()
        return process

    def _watch(self) -> None:
        failures = 0
        while (process := self._process) is not None and not self._over.is_set():
            try:
                code = process.wait(STEADY_S)
            except subprocess.TimeoutExpired:
                failures, self.trouble = 0, None
                continue
            if self._over.is_set():
                return
            failures += 1
            self.trouble = f"small files are not merged: that process ended with {code}"
            if failures == 1:
                _LOG.warning("%s; it is begun again, and as often as it ends", self.trouble)
            delay_ms = _PAUSES.next_ms(failures, elapsed_ms=0, random=_RANDOM)
            self._over.wait((delay_ms or 0) / 1_000)
            with self._lock:
                if not self._over.is_set():
                    _end(process)
                    self._process = self._begun()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe that it reads, and see it end."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def forget(lake: Catalog, kept_ms: int | None) -> int:
    """Expire old snapshots, unless a coordinator of stream tables does; how many there were.

    That coordinator knows which snapshots its tables have not read yet. None is the default: a day
    in a lake that Penstock made, in others for ever, which is 0.
    """
    if kept_ms is None:
        kept_ms = SNAPSHOTS_KEPT_MS if lake.is_ours() else 0
    if not kept_ms or lake.query("SELECT 1 FROM penstock_meta WHERE key = 'version:tables'"):
        return 0
    return len(expire(lake, older_than=before(lake, kept_ms)).snapshots)


def keep_tidy(
    lake: Catalog, names: Sequence[str], over: threading.Event, *, kept_ms: int | None = None
) -> None:
    """Merge and clean until it is over."""
    cleaned_ms = lake.clock.monotonic_ms()
    while not over.is_set():
        try:
            known = {table.name for table in lake.tables()}
            there = [name for name in names if name.rpartition(".")[2] in known]
            is_busy = tidy(lake, there) >= TIERS[0].files_max
            if lake.clock.monotonic_ms() - cleaned_ms >= CLEAN_EVERY_S * 1_000:
                cleaned_ms = lake.clock.monotonic_ms()
                forget(lake, kept_ms)
                clean(lake, older_than=before(lake, GRACE_MS))
                sweep(lake, grace_ms=GRACE_MS)
        except (PenstockError, OSError) as error:
            _LOG.warning("small files are merged later: %s", error)
            is_busy = False
        over.wait(0.0 if is_busy else EVERY_S)


def yield_processor() -> None:
    """Let everything else go first, in this session and in others.

    With `sched_autogroup` a session is a scheduling group: the nice value of a process counts only
    inside it, and the group has one of its own.
    """
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))


def main(commands: IO[bytes]) -> None:
    """Work off the order in the first line, until the pipe is closed."""
    yield_processor()
    order = json.loads(commands.readline() or b"{}")
    if not order:
        raise Rejected("this program is started by a pipeline")
    over = threading.Event()

    def wait_for_the_end() -> None:
        commands.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with open_catalog(order["address"], order["data_path"]) as lake:
        keep_tidy(lake, order["names"], over, kept_ms=order["kept_ms"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    main(sys.stdin.buffer)
