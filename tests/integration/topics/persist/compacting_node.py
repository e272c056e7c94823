"""A process that writes, compacts and prints what was acknowledged, until someone kills it.

`python compacting_node.py DIRECTORY STEP`: at that step of a compaction it kills itself; with step
"none" it goes on for ever. The first line says what it found.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.integration.topics.node import SMALL, drained, node, write


def die(*_args: Any, **_kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(engine: Any, step: str) -> None:
    """Die when a compaction comes to a step."""
    compaction = engine.snapshotter
    match step:
        case "process-started":
            compaction._feed = die
        case "snapshots-made":
            compaction._take = die
        case "log-not-cut":
            real = compaction._logged

            async def logged(operation: Any) -> None:
                if type(operation).__name__ == "Compact":
                    die()
                await real(operation)

            compaction._logged = logged
        case "log-cut":
            engine.snapshots.keep = die
        case "older-removed":
            compaction._tidy = die
        case "segments-removed":
            sweep = engine.cold_files.sweep
            engine.cold_files.sweep = lambda wanted: die(sweep(wanted))


async def main(directory: Path, step: str) -> None:
    async with node(directory, seal=SMALL, boot_id="same") as engine:
        numbers: list[int] = []
        if "t" not in engine.registry.topics:
            await engine.put_topic("t", {"durability": "fsync", "cap_records": 400})
        else:
            numbers = await drained(engine, "t")
        print("found", *numbers, flush=True)
        following = engine.registry.topics["t"].head_seq
        await engine.compact()
        arm(engine, step)
        compacting: asyncio.Future[Any] = asyncio.ensure_future(engine.compact())
        while True:
            await write(engine, "t", following, 5)
            following += 5
            print("acked", following, flush=True)
            if compacting.done():
                compacting.result()
                compacting = asyncio.ensure_future(engine.compact())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
