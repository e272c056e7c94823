"""The durable topic behind the edge, as the edge sees it: in this process or on a server.

Errors of every call: `TooLarge` if it can never be done, any other `PenstockError` if it may be
done when it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock.ingest.records import Identity

RAW_TOPIC: Final = "ingest.raw"
REJECT_TOPIC: Final = "ingest.rejects"
KEY_WINDOW_MS: Final = 600_000
"""How long the topic remembers which append came after which seq."""

RAW_OPTIONS: Final[dict[str, Any]] = {
    "durability": "fsync",
    "idempotency_window_ms": KEY_WINDOW_MS,
}
REJECT_OPTIONS: Final[dict[str, Any]] = {"durability": "disk", "cap_records": 10_000}
DEVICES_OPTIONS: Final[dict[str, Any]] = {"durability": "fsync"}


class TopicNames(NamedTuple):
    """Where messages, rejects and the edge's memory of devices go."""

    raw: str = RAW_TOPIC
    rejects: str = REJECT_TOPIC

    @property
    def devices(self) -> str:
        """Checkpoints of what is durable of each device."""
        return f"{self.raw}.devices"


class Landed(NamedTuple):
    """Where a write is. `deduped`: a write with the same key had been there before."""

    first_seq: int
    last_seq: int
    deduped: bool


class IdentityPage(NamedTuple):
    """Which messages stand after a seq; those of other writers are None."""

    identities: list[Identity | None]
    next_from_seq: int
    caught_up: bool


class RawTopic(Protocol):
    """The topics that an edge writes. Nothing here is tried again by itself."""

    async def open(self) -> None:
        """Make the topics as they have to be."""
        ...

    async def append(self, body: bytes, key: str) -> Landed:
        """Append the records of a body, all or none; returns when they are durable."""
        ...

    async def identities(self, from_seq: int) -> IdentityPage:
        """A page of the messages after a seq."""
        ...

    async def load(self) -> list[bytes]:
        """The records of the topic of devices, oldest first."""
        ...

    async def save(self, records: Sequence[bytes]) -> None:
        """Write records to the topic of devices, together, and remove all before them."""
        ...

    async def reject(self, records: Sequence[bytes]) -> None:
        """Write JSON to the reject topic."""
        ...

    async def close(self) -> None:
        """Give back what `open` took."""
        ...
