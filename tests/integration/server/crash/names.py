"""Names of topics that live where a test wants them."""

from __future__ import annotations

from itertools import count

from penstock.topics.core.registry import partition_of

PARTITIONS = 2


def placed(stem: str, partition: int) -> str:
    """A name that begins like this and lives on a partition."""
    for number in count():
        name = f"{stem}{number}"
        if partition_of(name, PARTITIONS) == partition:
            return name
    raise AssertionError
