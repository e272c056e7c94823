"""The live stream over real sockets: very many readers, and one that does not read."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from pathlib import Path
from typing import Any

from penstock.app.server import Server
from penstock.config import Settings
from penstock.server.live.peek import BYTES_PER_S
from penstock.server.live.stream import WAITING_BYTES_MAX
from penstock.topics.core.batch import parse_write
from tests.waiting import until

READERS = 1_000
FRAME_BYTES = 4_096


class Reader:
    """One EventSource, as bytes: counts events, keeps the last of each kind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.counts: dict[str, int] = {}
        self.last: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    def follow(self) -> Reader:
        self._task = asyncio.ensure_future(self._follow())
        return self

    async def _follow(self) -> None:
        event = ""
        async for line in self._reader:
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
                self.counts[event] = self.counts.get(event, 0) + 1
            elif line.startswith(b"data: "):
                self.last[event] = line[6:]

    async def close(self) -> None:
        self.writer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


async def connect(port: int, target: str, *, small: bool = False) -> Reader:
    plain = socket.socket()
    if small:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=1 << 20)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return Reader(reader, writer)


def settings(tmp_path: Path) -> Settings:
    return Settings(port=0, store="memory", data_dir=tmp_path, log="off")


async def served(tmp_path: Path) -> Server:
    server = Server(settings(tmp_path))
    await server.listen()
    await server.open()
    return server


def test_a_thousand_readers_are_told_by_one_frame(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))

    async def test() -> None:
        server = await served(tmp_path)
        port = server.address[1]
        readers = [(await connect(port, "/v0/live?on=/")).follow() for _ in range(READERS)]
        await until(lambda: all(reader.counts.get("frame", 0) >= 2 for reader in readers))
        assert server.application is not None
        hub = server.application.context.live
        assert hub is not None
        assert len(hub.channels) == 1
        frames = {bytes(reader.last["frame"]) for reader in readers}
        assert len(frames) <= 2, "all were told the same, some a second earlier"
        for reader in readers:
            await reader.close()
        await until(lambda: not hub.channels)
        await server.close()

    asyncio.run(test())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_that_does_not_read_holds_nobody_up_and_costs_no_memory(tmp_path):
    topics = [f"noisy{n}" for n in range(16)]
    target = "/v0/live?" + "&".join(f"on=/topics/{name}" for name in topics)
    body = json.dumps({"records": [{"data": "x" * 3_000}] * 20}).encode()

    async def test() -> None:
        server = await served(tmp_path)
        port = server.address[1]
        assert server.application is not None
        context = server.application.context
        slow = await connect(port, target, small=True)
        quick = (await connect(port, target)).follow()
        await until(lambda: quick.counts.get("frame", 0) >= len(topics))
        writer = (await asyncio.open_connection("127.0.0.1", port))[1]

        def lagging() -> list[int]:
            return [stream.waiting_bytes for stream in context.streams if stream.waiting_bytes]

        while not lagging():  # until the buffers of the kernel are full
            for name in topics:
                head = f"POST /v0/topics/{name} HTTP/1.1\r\nHost: localhost\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
            await writer.drain()
            await asyncio.sleep(0.05)
        before = quick.counts["frame"]
        await until(lambda: quick.counts["frame"] > before + 2 * len(topics))
        assert max(lagging()) < WAITING_BYTES_MAX + BYTES_PER_S * 2
        frames = slow.follow().counts
        await until(lambda: frames.get("frame", 0) >= len(topics), "the slow one goes on")
        for reader in (slow, quick):
            await reader.close()
        writer.close()
        await server.close()

    asyncio.run(test())


class Sizes(Reader):
    """Counts the bytes of frames instead."""

    async def _follow(self) -> None:
        event = b""
        async for line in self._reader:
            if line.startswith(b"event: "):
                event = line[7:].strip()
            elif line.startswith(b"data: ") and event == b"frame":
                self.counts["frames"] = self.counts.get("frames", 0) + 1
                self.counts["bytes"] = self.counts.get("bytes", 0) + len(line)


def test_frames_of_topics_that_change_places_stay_small(tmp_path):
    """Fifty topics, ordered by a rate that another one leads each second."""

    async def test() -> None:
        server = await served(tmp_path)
        assert server.engine is not None
        engine = server.engine
        for number in range(50):
            await engine.append(f"topic{number}", parse_write(b'{"records":[{"data":1}]}'))
        reader = await connect(server.address[1], "/v0/live?on=/topics%3Fsort%3Drate")
        sizes = Sizes(reader._reader, reader.writer).follow()
        await until(lambda: sizes.counts.get("frames", 0) >= 1)
        while (seen := sizes.counts["frames"]) < 6:
            for number in range(seen, 50, 7):
                many = b",".join([b'{"data":1}'] * 10 * number)
                await engine.append(f"topic{number}", parse_write(b'{"records":[%b]}' % many))
            await until(lambda seen=seen: sizes.counts["frames"] > seen)
        assert sizes.counts["bytes"] / sizes.counts["frames"] <= FRAME_BYTES
        await sizes.close()
        await server.close()

    asyncio.run(test())
