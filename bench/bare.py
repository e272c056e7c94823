"""The limit to compare with: HTTP by httptools on uvloop, a group-commit thread, and no engine.

It reads a request and its JSON, writes its body to a zeroed file, syncs once for all that came
meanwhile, and answers. `python -m bench.bare PORT FILE`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import httptools
import msgspec
import uvloop

ANSWER = b'{"topic":"t","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1}'
FIXED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
ZEROED = 256 << 20


class Record(msgspec.Struct, gc=False):
    """A record as the wire has it."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw | None = None


class Write(msgspec.Struct):
    """A write as the wire has it."""

    records: list[Record]


READ = msgspec.json.Decoder(Write).decode


class GroupCommit:
    """Takes bodies from the loop, writes and syncs what has come, and answers them together."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        zeros = bytes(1 << 20)
        for offset in range(0, ZEROED, len(zeros)):
            os.pwrite(self.fd, zeros, offset)
        os.fsync(self.fd)
        self.loop = loop
        self.waiting: list[tuple[bytes, asyncio.Transport]] = []
        self.lock = threading.Lock()
        self.wake = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def put(self, body: bytes, transport: asyncio.Transport) -> None:
        with self.lock:  # or what is put into a group that was just taken is never answered
            self.waiting.append((body, transport))
            is_first = len(self.waiting) == 1
        if is_first:
            self.wake.set()

    def run(self) -> None:
        offset = 0
        while True:
            self.wake.wait()
            self.wake.clear()
            with self.lock:
                group, self.waiting = self.waiting, []
            if not group:
                continue
            data = b"".join([body for body, _ in group])
            if offset + len(data) > ZEROED:
                offset = 0
            offset += os.pwrite(self.fd, data, offset)
            os.fdatasync(self.fd)
            self.loop.call_soon_threadsafe(self.answer, group)

    def answer(self, group: list[tuple[bytes, asyncio.Transport]]) -> None:
        for _, transport in group:
            if not transport.is_closing():  # one that raises would leave the rest unanswered
                transport.write(FIXED)


class Bare(asyncio.Protocol):
    """One connection."""

    def __init__(self, commit: GroupCommit) -> None:
        self.commit = commit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        READ(body)
        self.commit.put(body, self.transport)  # type: ignore[arg-type]


async def main(port: int, path: str) -> None:
    loop = asyncio.get_running_loop()
    commit = GroupCommit(path, loop)
    server = await loop.create_server(lambda: Bare(commit), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    sys.setswitchinterval(0.0002)
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
