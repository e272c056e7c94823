"""A process to be killed: eight writers over four partitions of a local log, for ever.

`local_writer.py PATH LIFE` prints `PARTITION INDEX PAYLOAD` for every acknowledged entry.
"""

from __future__ import annotations

import os
import sys
import threading

from penstock.log.shell import LocalLog

PARTITIONS, WRITERS = 4, 8


def main() -> None:
    path, life = sys.argv[1:]
    log = LocalLog.open("segment", path, partitions=PARTITIONS, segment_bytes=65_536)

    def write(writer: int) -> None:
        partition, number = writer % PARTITIONS, 0
        while True:
            payload = f"{life}.{writer}.{number}" + "." * (number * 37 % 300)
            index = log.append(partition, payload.encode()).result()
            os.write(1, f"{partition} {index} {payload}\n".encode())
            number += 1

    for writer in range(WRITERS):
        threading.Thread(target=write, args=(writer,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
