"""Several clients at the same topics at the same time: what was answered is there, once, in order.

What nobody answered is there wholly or not at all. Deletes by tag go on meanwhile; a record whose
write and delete overlapped may be there or not, and from the next check on that is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.integration.server.crash.payloads import Payloads, Wanted, write_body
from tests.integration.server.crash.wire import Record, Wire

KEEP_SEQS = 600
TAGS = ("a", "ab", "a:1", "b", "b:2")
MATCHES = ("a", "b:2", "a:*")


@dataclass
class _Write:
    """A write that was sent: when, and when it was answered with which seqs."""

    records: list[Wanted]
    sent: int
    answered: int | None = None
    first_seq: int = 0


@dataclass
class _Delete:
    """A delete that was sent, and when it was answered."""

    match: str | None
    before_seq: int | None
    sent: int
    answered: int | None = None

    def hits(self, seq: int, tag: str | None) -> bool:
        if self.before_seq is not None and seq >= self.before_seq:
            return False
        if self.match is None:
            return True
        if self.match.endswith("*"):
            return tag is not None and tag.startswith(self.match[:-1])
        return tag == self.match


@dataclass
class Shared:
    """A topic that many write to, and what is known of it since the last check."""

    name: str
    durability: str
    base: dict[int, Record] = field(default_factory=dict)
    writes: list[_Write] = field(default_factory=list)
    deletes: list[_Delete] = field(default_factory=list)
    head: int = 0
    earliest: int = 0
    moment: int = 0
    checked: int = 0

    def now(self) -> int:
        """A time that only grows: what was answered before something was sent is earlier."""
        self.moment += 1
        return self.moment

    async def check(self, wire: Wire) -> None:
        """After a restart: compare, and start over with what is there."""
        whole = await wire.whole(self.name)
        if whole is None:
            assert not self.checked, f"{self.name} is gone"
            assert not any(write.answered for write in self.writes), f"{self.name} is gone"
            self.writes.clear()
            self.deletes.clear()
            return
        assert whole.head_seq >= self.head, f"{self.name}: the head went back"
        assert whole.earliest_seq >= self.earliest, f"{self.name}: the floor went back"
        found, explained = whole.records, set[int]()
        places = {bytes(record.data): seq for seq, record in found.items()}
        assert len(places) == len(found), f"{self.name}: a record is there twice"
        for seq, record in self.base.items():
            self._compare(seq, record.tag, bytes(record.data), (0, 0), found)
            explained.add(seq)
        for write in self.writes:
            self._check_write(write, places, found, explained)
        risen = sorted(found.keys() - explained)
        assert not risen, f"{self.name}: seqs {risen[:10]} are there and nobody wrote them"
        self.base = found
        self.head, self.earliest = whole.head_seq, whole.earliest_seq
        self.writes, self.deletes = [], []
        self.checked += 1

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)

    def _check_write(
        self,
        write: _Write,
        places: dict[bytes, int],
        found: dict[int, Record],
        explained: set[int],
    ) -> None:
        first_seq = write.first_seq
        if write.answered is None:
            seen = [
                places[record.data] - place
                for place, record in enumerate(write.records)
                if record.data in places
            ]
            if not seen:
                return
            assert len(set(seen)) == 1, f"{self.name}: a write is torn: {seen}"
            first_seq = seen[0]
        for place, record in enumerate(write.records):
            seq = first_seq + place
            self._compare(seq, record.tag, record.data, (write.sent, write.answered), found)
            assert seq not in explained, f"{self.name}: seq {seq} was given out twice"
            explained.add(seq)

    def _compare(
        self,
        seq: int,
        tag: str | None,
        data: bytes,
        span: tuple[int, int | None],
        found: dict[int, Record],
    ) -> None:
        """A record is there if it must be, and is not if it must not be."""
        hits = [delete for delete in self.deletes if delete.hits(seq, tag)]
        sent, answered = span
        gone = any(
            d.answered is not None and answered is not None and answered <= d.sent for d in hits
        )
        maybe = any(d.answered is None or sent < d.answered for d in hits)
        there = seq in found
        if gone:
            assert not there, f"{self.name}: seq {seq} was deleted and is there"
        elif not maybe:
            assert there, f"{self.name}: seq {seq} {data[:60]!r} was answered and is lost"
        if there:
            assert bytes(found[seq].data) == data, f"{self.name}: seq {seq} holds another record"


class Member:
    """One of the many: writes, and now and then deletes."""

    def __init__(self, name: str, seed: int, topics: list[Shared]) -> None:
        self._random = Random(seed)
        self._payloads = Payloads(name)
        self._topics = topics
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        topic = self._random.choice(self._topics)
        if self._random.random() < 0.06:
            await self._delete(wire, topic)
        else:
            await self._write(wire, topic)

    async def _write(self, wire: Wire, topic: Shared) -> None:
        records = self._payloads.some(self._random)
        write = _Write(records, topic.now())
        topic.writes.append(write)
        config = b'{"durability":"%b"}' % topic.durability.encode()
        body = write_body(records, config=config)
        reply = await wire.call("POST", f"/v0/topics/{topic.name}", body)
        told = reply.ok()
        assert told["last_seq"] - told["first_seq"] + 1 == len(records)
        write.first_seq, write.answered = told["first_seq"], topic.now()
        topic.head = max(topic.head, told["head_seq"])
        self.answered += 1

    async def _delete(self, wire: Wire, topic: Shared) -> None:
        match, before_seq = self._random.choice(MATCHES), None
        if topic.head - topic.earliest > KEEP_SEQS:
            match, before_seq = None, topic.head - KEEP_SEQS // 2
        delete = _Delete(match, before_seq, topic.now())
        topic.deletes.append(delete)
        body = {"match": match} if match is not None else {"before_seq": before_seq}
        reply = await wire.ask("POST", f"/v0/topics/{topic.name}/delete", body)
        if reply.status == 404:
            topic.deletes.remove(delete)
            return
        told = reply.ok()
        delete.answered = topic.now()
        topic.earliest = max(topic.earliest, told["earliest_seq"])
        self.answered += 1
