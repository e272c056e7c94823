"""The limit of delivery to compare with: a loop that writes each record to each watcher.

It answers a write at once, makes one frame of all that came for a path in a turn of the loop, and
writes that to the socket of every watcher of the path. There is no log, no topic and no cursor, and
a slow watcher loses what its socket does not take. With a file it first writes and syncs all that
came meanwhile, as `bench.bare` does. `python -m bench.bare_push PORT [FILE]`.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop

from bench.bare import FIXED, GroupCommit

FRAME = b'id: eyJ0Ijo0Mn0\nevent: record\ndata: {"records":[%b]}\n\nevent: caught-up\n\n'


class Fan:
    """The watchers of each path, and what they do not have yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.descriptors: dict[bytes, list[int]] = {}
        self.waiting: dict[bytes, list[bytes]] = {}

    def put(self, path: bytes, body: bytes) -> None:
        if not self.waiting:
            self.loop.call_soon(self.write)
        self.waiting.setdefault(path, []).append(body)

    def write(self) -> None:
        everything, self.waiting = self.waiting, {}
        for path, waiting in everything.items():
            frame = FRAME % b",".join(waiting)
            for fd in self.descriptors.get(path, ()):
                try:
                    os.write(fd, frame)
                except OSError:
                    continue


class SyncedFan(GroupCommit):
    """A group commit; watchers have what is synced."""

    def __init__(self, fan: Fan, file: str) -> None:
        super().__init__(file, fan.loop)
        self.fan = fan
        self.paths: dict[asyncio.Transport, bytes] = {}

    def answer(self, group: list[tuple[bytes, asyncio.Transport]]) -> None:
        super().answer(group)
        for body, transport in group:
            self.fan.put(self.paths[transport], body)


class Connection(asyncio.Protocol):
    """A writer, or a watcher once it has sent a GET."""

    def __init__(self, fan: Fan, synced: SyncedFan | None) -> None:
        self.fan = fan
        self.synced = synced

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1]
        if data.startswith(b"GET"):
            self.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")  # type: ignore[attr-defined]
            fd = self.transport.get_extra_info("socket").fileno()
            self.fan.descriptors.setdefault(path, []).append(fd)
        elif self.synced is not None:
            self.synced.paths[self.transport] = path  # type: ignore[index]
            self.synced.put(data.partition(b"\r\n\r\n")[2], self.transport)  # type: ignore[arg-type]
        else:
            self.fan.put(path, data.partition(b"\r\n\r\n")[2])
            self.transport.write(FIXED)  # type: ignore[attr-defined]


async def main(port: int, file: str | None = None) -> None:
    loop = asyncio.get_running_loop()
    fan = Fan(loop)
    synced = SyncedFan(fan, file) if file else None
    server = await loop.create_server(
        lambda: Connection(fan, synced), "127.0.0.1", port, backlog=2_000
    )
    await server.serve_forever()


if __name__ == "__main__":
    sys.setswitchinterval(0.0002)
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))
