"""The limits of the protocol: what one request, one page and one node may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.kernel.units import KIB, MIB
from penstock.protocol.errors import InvalidRequest

LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
CLAIM_JITTER_MS_MAX: Final = 5_000
DELAY_MS_MAX: Final = 86_400_000
"""How long a returned job may be delayed."""
WAIT_MS_MAX: Final = 30_000
"""How long a diff may wait for records."""
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 1_000
"""Rows in a page of names."""
WATCH_TOPICS_MAX: Final = 256
WATCH_PREFIXES_MAX: Final = 16
WRITES_MAX: Final = 256
"""Topics of one atomic write."""
NAME_MAX: Final = 255
TABLE_WAIT_MS_MAX: Final = 60_000
"""How long a refresh or a drain may be waited for."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What one request and one partition may hold; 0 means no limit where a default is 0."""

    record_bytes_max: int = MIB
    meta_bytes_max: int = 16 * KIB
    meta_keys_max: int = 64
    tag_bytes_max: int = 256
    node_bytes_max: int = 128
    key_bytes_max: int = 256
    batch_records_max: int = 10_000
    topics_max: int = 100_000
    routers_max: int = 10_000
    total_bytes_max: int = 0
    read_records: int = 256
    read_records_max: int = 1_000
    read_bytes: int = MIB
    read_bytes_max: int = 8 * MIB
    scan_records_max: int = 65_536
    filter_records_max: int = 8_192
    seqs_max: int = 1_000
    claim_max: int = 1_000

    def __post_init__(self) -> None:
        zero_is_off = {"topics_max", "routers_max", "total_bytes_max"}
        for name in self.__slots__:
            least = 0 if name in zero_is_off else 1
            if getattr(self, name) < least:
                raise InvalidRequest(f"{name} must be at least {least}, not {getattr(self, name)}")


LIMITS: Final = TopicLimits()
"""The limits of a server with default settings; schemas show these."""


def clamp_lease_ms(lease_ms: int) -> int:
    """Clamp a lease to between a tenth of a second and a day."""
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
