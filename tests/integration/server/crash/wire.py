"""A client that knows three outcomes of a request: answered, refused, and nobody will ever know."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

ANSWER_S = 30.0


class Gone(Exception):
    """The server went away before it answered: what was asked may have happened or not."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def ok(self) -> Any:
        assert self.status in (200, 201), f"{self.status} {self.body[:500]!r}"
        return self.json


class Record(msgspec.Struct, frozen=True):
    """A record as a page shows it; data and meta as the bytes that were written."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"")

    @property
    def meta_bytes(self) -> bytes | None:
        return bytes(self.meta) or None


class Page(msgspec.Struct):
    """What a diff answers."""

    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None = None


class Whole(NamedTuple):
    """A topic read from the beginning to its head."""

    records: dict[int, Record]
    head_seq: int
    earliest_seq: int
    config: dict[str, Any]


_PAGE = msgspec.json.Decoder(Page)


class Wire:
    """One connection to a server; requests go one after another. Reconnects never."""

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: bytes | None = None) -> Reply:
        """Ask; `Gone` if no whole answer came."""
        try:
            reply = await asyncio.wait_for(self._call(method, path, body), ANSWER_S)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error
        if reply.status == 503:
            raise Gone
        return reply

    async def _call(self, method: str, path: str, body: bytes | None) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._where, limit=1 << 24)
        reader, writer = self._streams
        kind = b"" if body is None else b"content-type: application/json\r\n"
        writer.write(
            b"%b %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b"
            % (method.encode(), path.encode(), kind, len(body or b""), body or b"")
        )
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return Reply(int(head[9:12]), await reader.readexactly(length))

    async def ask(self, method: str, path: str, body: object = None) -> Reply:
        """Ask with a body that is made JSON."""
        return await self.call(method, path, None if body is None else msgspec.json.encode(body))

    async def page(self, topic: str, from_seq: int, limit: int = 1_000) -> Page | None:
        """A page of a topic; None if there is no such topic."""
        reply = await self.ask(
            "POST",
            f"/v0/topics/{topic}/diff",
            {"from_seq": from_seq, "limit": limit, "include_tags": True},
        )
        if reply.status == 404:
            return None
        assert reply.status == 200, f"{reply.status} {reply.body[:500]!r}"
        return _PAGE.decode(reply.body)

    async def whole(self, topic: str) -> Whole | None:
        """Every record of a topic by seq, in order; None if there is no such topic."""
        found: dict[int, Record] = {}
        from_seq, last = 0, 0
        while True:
            page = await self.page(topic, from_seq)
            if page is None:
                return None
            for record in page.records:
                assert record.seq > last, f"{topic}: seq {record.seq} after {last}"
                last = record.seq
                found[record.seq] = record
            if page.caught_up:
                assert page.next_from_seq == page.head_seq
                shown = (await self.ask("GET", f"/v0/topics/{topic}")).ok()
                return Whole(found, page.head_seq, page.earliest_seq, shown["config"])
            assert page.next_from_seq > from_seq, f"{topic}: a reader does not get on"
            from_seq = page.next_from_seq

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
