"""Stable numbers for names, the same on every platform and in every version.

>>> partition_of("meters/7", partitions=64), partition_of("meters/8", partitions=64)
(36, 21)
"""

from __future__ import annotations

from hashlib import blake2b


def partition_of(name: str, partitions: int) -> int:
    """The partition of a name: a stable hash, independent of process and platform."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions
