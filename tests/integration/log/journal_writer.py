"""A process to be killed: eight writers over four partitions of a journal, for ever.

`journal_writer.py PATH LIFE` prints `PARTITION INDEX PAYLOAD` for every acknowledged entry.
"""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.kernel.system import SystemClock
from penstock.log.journal import LocalJournal
from penstock.log.stores.segment import open_segment

PARTITIONS, WRITERS = 4, 8


async def main() -> None:
    path, life = sys.argv[1:]
    store = open_segment(path, segment_bytes=65_536)
    loop = asyncio.get_running_loop()
    journal = LocalJournal(store, partitions=PARTITIONS, loop=loop, clock=SystemClock())
    indexes = [journal.bounds(partition).last_index for partition in range(PARTITIONS)]
    journal.start()

    def write(writer: int, number: int) -> None:
        partition = writer % PARTITIONS
        payload = f"{life}.{writer}.{number}" + "." * (number * 37 % 300)
        indexes[partition] += 1
        index = indexes[partition]

        def durable(error: Exception | None) -> None:
            assert error is None
            os.write(1, f"{partition} {index} {payload}\n".encode())
            write(writer, number + 1)

        journal.append(partition, payload.encode(), durable, sync=True)

    for writer in range(WRITERS):
        write(writer, 0)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
