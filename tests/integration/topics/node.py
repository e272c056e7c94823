"""A node on a directory, for tests that end it and start it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from penstock.log.stores import open_store
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import DiffPage, ReadRequest
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.persist.segments import SealOptions

PARTITIONS = 3
SMALL = SealOptions(segment_records_max=10, hot_segments=1)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that waits."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def node(
    directory: Path, *, store: str = "segment", end_well: bool = True, **options: Any
) -> AsyncIterator[Engine]:
    """An engine on a data directory. It is closed at the end, or left as by SIGKILL."""
    boot_id, clock = options.pop("boot_id", None), options.pop("clock", None)
    sizes = {"segment_bytes": 1 << 20} if store == "segment" else {}
    opened = open_store(store, directory / "log", **sizes)
    try:
        options = {"partitions": PARTITIONS, "data_dir": directory} | options
        engine = Engine(opened, EngineOptions(**options), boot_id=boot_id, clock=clock)
        await engine.open()
        try:
            yield engine
        finally:
            if end_well:
                await engine.close()
            else:
                engine.turns.stop()
                engine.journal.stop_timed_syncs()
                if engine.snapshotter is not None:
                    engine.snapshotter.stop()
                await engine.journal.stop()
    finally:
        opened.close()


async def write(engine: Engine, topic: str, first: int, count: int = 1, **more: Any) -> Any:
    """Write numbers from `first` on, with a tag of their last digit."""
    records = ",".join(f'{{"data":{n},"tag":"t{n % 10}"}}' for n in range(first, first + count))
    extra = "".join(f',"{key}":{value}' for key, value in more.items())
    return await engine.append(topic, parse_write(f'{{"records":[{records}]{extra}}}'.encode()))


async def drained(engine: Engine, topic: str, from_seq: int = 0, **request: Any) -> list[int]:
    """Every number that a reader gets, page by page."""
    numbers: list[int] = []
    while True:
        page: DiffPage = await engine.diff(topic, ReadRequest(from_seq, **request))
        numbers += [int(bytes(slot.record.data)) for slot in page.records]
        if page.caught_up:
            return numbers
        from_seq = page.next_from_seq
