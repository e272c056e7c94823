"""What may come over the network: bad bytes, bad order, bad manners, by the thousand."""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64decode
from contextlib import suppress
from random import Random

import pytest

from penstock.client import AsyncClient
from penstock.ingest.device import Device
from penstock.ingest.device_core import DeviceRefused
from penstock.ingest.edge import Edge
from penstock.ingest.frames import (
    Ack,
    ErrorCode,
    Failure,
    Frame,
    FrameReader,
    Welcome,
    encode,
    encode_fragments,
    encode_hello,
    encode_message,
    encode_ping,
)
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.tokens import parse_tokens
from tests.integration.ingest.place import edge_at, raw_messages, run
from tests.waiting import until

HELLO = encode_hello("hostile", b"")
MESSAGE = encode_message(1, b"x" * 100)
THOUSANDS = 1_500


class Peer:
    """A device that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader(65_536, opening=False)
        self.found: list[Frame] = []

    @classmethod
    async def connect(cls, edge: Edge, data: bytes = b"") -> Peer:
        peer = cls(*await asyncio.open_connection(*edge.address))
        peer.writer.write(data)
        return peer

    async def to_the_end(self) -> list[Frame]:
        """Everything until the edge closes."""
        while data := await self._reader.read(65_536):
            self.found += self._frames.feed(data)
        self.writer.close()
        return self.found

    async def until_acked(self, *message_ids: int) -> None:
        wanted = set(message_ids)
        while wanted:
            data = await self._reader.read(65_536)
            assert data, self.found
            frames = self._frames.feed(data)
            self.found += frames
            wanted -= {one for each in frames if isinstance(each, Ack) for one in each.message_ids}

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


CASES = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.BAD_MAGIC),
    "no hello": (encode_ping(), ErrorCode.NO_HELLO),
    "another version": (flipped(HELLO, 1), ErrorCode.BAD_VERSION),
    "a version not spoken": (encode_hello("a", b"", version_min=2, version_max=9),
                             ErrorCode.BAD_VERSION),
    "hello twice": (HELLO + HELLO, ErrorCode.BAD_TYPE),
    "an answer as a question": (HELLO + encode(7, b""), ErrorCode.BAD_TYPE),
    "a corrupted fragment": (HELLO + flipped(MESSAGE, 40), ErrorCode.BAD_CHECKSUM),
    "an oversized frame": (HELLO + encode(3, bytes(17_000)), ErrorCode.BAD_LENGTH),
    "an oversized message": (HELLO + encode_fragments(1, bytes(300_000), 16_000)[0],
                             ErrorCode.MESSAGE_TOO_LARGE),
    "a large frame before hello": (encode(3, bytes(2_000)), ErrorCode.BAD_LENGTH),
    "pieces that differ": (
        HELLO + encode_fragments(1, b"a" * 900, 300)[0] + encode_fragments(1, b"b" * 900, 300)[0],
        ErrorCode.FRAGMENT_MISMATCH,
    ),
    "too far ahead": (HELLO + encode_fragments(1, bytes(900), 300)[0] + encode_message(257, b""),
                      ErrorCode.WINDOW_EXCEEDED),
}  # fmt: skip


def test_bad_bytes_get_an_error_with_a_code_and_the_end_and_others_go_on(shared_url, raw):
    async def hostile() -> None:
        async with edge_at(shared_url, raw) as edge, Device(*edge.address, "good") as good:
            for name, (data, error_code) in CASES.items():
                peer = await Peer.connect(edge, data)
                frames = await peer.to_the_end()
                assert isinstance(frames[-1], Failure), name
                assert frames[-1].error_code == error_code, name
                assert re.search("expected|send HELLO first", frames[-1].text), name
                await good.send(name.encode())
            await good.flush()
            assert edge.core.counters.frame_errors == len(CASES)
            assert good.connects == 1
            await until(lambda: not edge._rejects, "rejects written")
            assert edge.core.reassembler.reserved_bytes == 0
        found = await raw_messages(shared_url, raw)
        assert [payload.decode() for _, _, payload in found] == list(CASES)
        async with AsyncClient(shared_url) as client:
            rejects = (await client.diff(f"{raw}.rejects", limit=1_000)).records
        assert [each.data["code"] for each in rejects] == [
            error_code.name.lower() for _, error_code in CASES.values()
        ]
        assert b64decode(rejects[0].data["bytes"]) == CASES["http"][0]
        assert all(len(each.data["bytes"]) <= 344 for each in rejects)

    run(hostile())


def test_a_truncated_message_is_not_taken_and_comes_whole_with_the_next_connection(shared_url, raw):
    async def truncated() -> None:
        async with edge_at(shared_url, raw) as edge:
            sent = encode_message(1, bytes(40_000))
            for cut in (30, 16_500, 40_000):
                peer = await Peer.connect(edge, HELLO + sent[:cut])
                await peer.writer.drain()
                await peer.close()
            peer = await Peer.connect(edge, HELLO + sent)
            await peer.until_acked(1)
            await peer.close()
        assert await raw_messages(shared_url, raw) == [("hostile", 1, bytes(40_000))]

    run(truncated())


def test_reordered_and_doubled_fragments_make_every_message_once(shared_url, raw):
    async def shuffled() -> None:
        random = Random(5)
        payloads = {number: random.randbytes(random.randint(1, 9_000)) for number in range(1, 41)}
        async with edge_at(shared_url, raw) as edge:
            frames = [
                frame
                for number, payload in payloads.items()
                for frame in encode_fragments(number, payload, 1_000) * 2
            ]
            random.shuffle(frames)
            peer = await Peer.connect(edge, HELLO + b"".join(frames))
            await peer.until_acked(*payloads)
            await peer.close()
            again = await Peer.connect(edge, HELLO + encode_message(7, payloads[7]))
            await again.until_acked(7)
            assert isinstance(again.found[0], Welcome)
            assert again.found[0].last_id == 40
            await again.close()
        found = await raw_messages(shared_url, raw)
        assert len(found) == 40
        assert {number: payload for _, number, payload in found} == payloads

    run(shuffled())


def test_a_wrong_token_is_refused_and_told_to_the_device(shared_url, raw):
    async def refused() -> None:
        async with edge_at(shared_url, raw, tokens=parse_tokens("a right\n* shared")) as edge:
            async with Device(*edge.address, "a", b"wrong") as device:
                with pytest.raises(DeviceRefused) as caught:
                    await device.send(b"x")
                assert caught.value.detail["error_code"] == ErrorCode.UNAUTHORIZED
            for name, token in (("a", b"right"), ("b", b"shared")):
                async with Device(*edge.address, name, token) as device:
                    await device.send(b"x")
                    await device.flush()
            assert edge.core.counters.unauthorized == 1
        assert len(await raw_messages(shared_url, raw)) == 2

    run(refused())


def test_a_newer_connection_of_a_device_ends_the_older_one(shared_url, raw):
    async def superseded() -> None:
        async with edge_at(shared_url, raw) as edge:
            older = await Peer.connect(edge, HELLO)
            await until(lambda: "hostile" in edge.core.devices, "the first HELLO")
            newer = await Peer.connect(edge, HELLO + MESSAGE)
            await newer.until_acked(1)
            frames = await older.to_the_end()
            assert isinstance(frames[-1], Failure)
            assert frames[-1].error_code == ErrorCode.SUPERSEDED
            await newer.close()

    run(superseded())


def test_half_open_dripping_and_unfinished_connections_by_the_thousand_bother_nobody(
    shared_url, raw
):
    async def thousands() -> None:
        limits = EdgeLimits(hello_ms=3_000, frame_ms=3_000, message_ms=3_000)
        async with (
            edge_at(shared_url, raw, limits=limits) as edge,
            Device(*edge.address, "good") as good,
        ):
            unfinished = encode_fragments(1, bytes(50_000), 2_000)[0]
            kinds = (b"", HELLO[:5], b"", unfinished[:700])
            peers = []
            for number in range(THOUSANDS):
                hello = encode_hello(f"h{number}", b"") if number % 4 >= 2 else b""
                tail = kinds[number % 4] if number % 4 != 2 else unfinished
                peers.append(await Peer.connect(edge, hello + tail))
                if number % 50 == 0:
                    await good.send(b"x" * 1_000)
            assert len(edge.core.sessions) <= THOUSANDS + 1
            await good.flush()
            core = edge.core
            assert core.reassembler.reserved_bytes <= limits.partials_bytes_max
            assert core.held_bytes <= limits.held_bytes_max
            await until(lambda: len(core.sessions) == 1, "the end of all the others")
            for _ in range(20):
                await good.send(b"y" * 1_000)
            await good.flush()
            assert (good.connects, core.counters.too_slow) == (1, THOUSANDS)
            assert core.reassembler.reserved_bytes == 0
            for peer in peers:
                peer.writer.transport.abort()

    run(thousands())


def test_devices_may_use_tls(shared_url, raw, certificate):
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate.cert, certificate.key)

    async def encrypted() -> None:
        trusting = ssl.create_default_context(cafile=str(certificate.cert))
        limits = EdgeLimits(hello_ms=1_000)
        async with edge_at(shared_url, raw, tls=serving, limits=limits) as edge:
            async with Device(*edge.address, "a", tls=trusting) as device:
                for number in range(200):
                    await device.send(bytes([number]) * 5_000)
                await device.flush()
            plain = await Peer.connect(edge, HELLO)
            with suppress(ConnectionError):
                assert await plain.to_the_end() == []
            plain.writer.transport.abort()
        assert [payload[:1] for _, _, payload in await raw_messages(shared_url, raw)] == [
            bytes([number]) for number in range(200)
        ]

    run(encrypted())
