"""A topic that a table is published to, as its readers see it; and a coordinator to be killed.

Run as a program it coordinates a warehouse until it is killed; with a number it kills itself after
so many writes to the topic, before any of them is marked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.client import Client
from penstock.client.heads import ChangeWriter
from penstock.protocol.requests import Record
from tests.integration.tables.place import ENGINE, QUICK


def records(client: Client, topic: str) -> list[Any]:
    """Every record of a topic."""
    return [record for page in client.read(topic) for record in page.records]


def replayed(found: Sequence[Any]) -> Counter[tuple[Any, ...]]:
    """The rows that a reader of the topic holds in the end."""
    held: Counter[tuple[Any, ...]] = Counter()
    for record in found:
        data = record.data
        if data.get("op") == "reset":
            held.clear()
            continue
        held[tuple(data["row"].values())] += data["weight"]
        assert held[tuple(data["row"].values())] >= 0
    return +held


def parts(found: Sequence[Any]) -> list[tuple[int, int]]:
    """Snapshot and part of every record, in order."""
    return [(record.meta["snapshot"], record.meta["part"]) for record in found]


class Deadly(ChangeWriter):
    """Kills its process once the topic has taken so many writes."""

    left = 0

    def write(self, url: str, topic: str, found: Sequence[Record], key: str) -> int:
        seq = super().write(url, topic, found, key)
        Deadly.left -= 1
        if not Deadly.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return seq


def main() -> None:
    from penstock.app.tables import Warehouse
    from penstock.client import heads

    place = json.loads(sys.argv[1])
    if len(sys.argv) > 2:
        Deadly.left = int(sys.argv[2])
        heads.ChangeWriter = Deadly  # type: ignore[misc]
    with Warehouse.open(
        place["address"], place["data_path"], runner=ENGINE, runner_options=place["options"],
        **{**QUICK, "parallel_refresh_mode": "off"},
    ) as warehouse:  # fmt: skip
        warehouse.coordinator().run()


if __name__ == "__main__":
    main()
