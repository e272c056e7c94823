"""The raw topic of an ingest edge on a server: one request at a time, without retries.

The edge retries by itself and must know whether a try may have reached the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from penstock.client import calls
from penstock.client.aio.client import AsyncClient
from penstock.client.retry import RetryPolicy
from penstock.client.settings import ClientSettings
from penstock.ingest.raw_topic import (
    DEVICES_OPTIONS,
    RAW_OPTIONS,
    REJECT_OPTIONS,
    IdentityPage,
    Landed,
    TooLarge,
    TopicNames,
    identity_of,
)
from penstock.protocol.errors import BatchTooLarge, PayloadTooLarge, RecordTooLarge

_PAGE = 16_384


class ServerTopic:
    """The topics of an edge over HTTP."""

    def __init__(self, settings: ClientSettings, names: TopicNames = TopicNames()) -> None:  # noqa: B008
        self._client = AsyncClient(replace(settings, retry=RetryPolicy(tries_max=1)))
        self._names = names

    async def open(self) -> None:
        """Create the topics."""
        names = self._names
        for name, options in (
            (names.raw, RAW_OPTIONS),
            (names.devices, DEVICES_OPTIONS),
            (names.rejects, REJECT_OPTIONS),
        ):
            await self._client.put_topic(name, **options)

    async def append(self, body: bytes, key: str) -> Landed:
        """Append to the raw topic."""
        call = calls.write_encoded(self._names.raw, body, idempotency_key=key, return_seqs=False)
        try:
            done = await self._client._runner.run(call)
        except (RecordTooLarge, BatchTooLarge, PayloadTooLarge) as error:
            raise TooLarge(error.message) from error
        return Landed(done.first_seq, done.last_seq, done.deduped)

    async def identities(self, from_seq: int) -> IdentityPage:
        """A page of the raw topic."""
        table = await self._client.diff_arrow(
            self._names.raw, from_seq=from_seq, limit=_PAGE, include_tags=True, include_meta=False
        )
        nodes, tags = table.column("node").to_pylist(), table.column("tag").to_pylist()
        facts = table.schema.metadata
        return IdentityPage(
            [identity_of(node, tag) for node, tag in zip(nodes, tags, strict=True)],
            msgspec.json.decode(facts[b"next_from_seq"], type=int),
            msgspec.json.decode(facts[b"caught_up"], type=bool),
        )

    async def load(self) -> list[bytes]:
        """All records of the device topic."""
        found: list[bytes] = []
        async for page in self._client.read(self._names.devices):
            found += [record.data_json for record in page.records]
        return found

    async def save(self, records: Sequence[bytes]) -> None:
        """Replace the contents of the device topic."""
        written = await self._client.write(self._names.devices, list(records))
        await self._client.delete_records(self._names.devices, before_seq=written.first_seq)

    async def reject(self, records: Sequence[bytes]) -> None:
        """Write to the reject topic."""
        await self._client.write(self._names.rejects, list(records))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
