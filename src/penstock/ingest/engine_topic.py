"""The raw topic in the same process as the topic engine: no HTTP between."""

from __future__ import annotations

from collections.abc import Sequence

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
from penstock.protocol.errors import BatchTooLarge, RecordTooLarge
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import ReadRequest
from penstock.topics.engine.engine import Engine


class EngineTopic:
    """The topics of an edge through an engine. Every call on the engine's loop."""

    def __init__(self, engine: Engine, names: TopicNames = TopicNames()) -> None:  # noqa: B008
        self._engine = engine
        self._names = names

    async def open(self) -> None:
        """Make the topics."""
        await self._engine.put_topic(self._names.raw, dict(RAW_OPTIONS))
        await self._engine.put_topic(self._names.devices, dict(DEVICES_OPTIONS))
        await self._engine.put_topic(self._names.rejects, dict(REJECT_OPTIONS))

    async def append(self, body: bytes, key: str) -> Landed:
        """Append to the raw topic."""
        try:
            write = parse_write(body, self._engine.limits)
            done = await self._engine.append(self._names.raw, write)
        except (RecordTooLarge, BatchTooLarge) as error:
            raise TooLarge(error.message) from error
        return Landed(done.first_seq, done.last_seq, done.deduped)

    async def identities(self, from_seq: int) -> IdentityPage:
        """A page of the raw topic."""
        limit = self._engine.limits.read_records_max
        request = ReadRequest(from_seq, limit=limit, include_tags=True, batch_bytes_max=1 << 23)
        diff = await self._engine.diff(self._names.raw, request)
        found = [identity_of(record.node, record.tag) for record in diff.found.records]
        return IdentityPage(found, diff.next_from_seq, diff.caught_up)

    async def load(self) -> list[bytes]:
        """All records of the topic of devices."""
        found: list[bytes] = []
        request = ReadRequest(batch_bytes_max=1 << 23)
        while True:
            diff = await self._engine.diff(self._names.devices, request)
            found += [bytes(record.data) for record in diff.found.records]
            if diff.caught_up:
                return found
            request = request._replace(from_seq=diff.next_from_seq)

    async def save(self, records: Sequence[bytes]) -> None:
        """Replace what the topic of devices holds."""
        written = await self._write(self._names.devices, records)
        await self._engine.delete(self._names.devices, before_seq=written)

    async def reject(self, records: Sequence[bytes]) -> None:
        """Write to the reject topic."""
        await self._write(self._names.rejects, records)

    async def close(self) -> None:
        """Nothing: the engine belongs to the caller."""

    async def _write(self, topic: str, records: Sequence[bytes]) -> int:
        body = b'{"records":[%b]}' % b",".join([b'{"data":%b}' % record for record in records])
        done = await self._engine.append(topic, parse_write(body, self._engine.limits))
        return done.first_seq
