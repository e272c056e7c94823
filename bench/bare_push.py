"""The limit of delivery to compare with: a loop that writes each record to each watcher.

It answers a write at once, makes one frame of all that came for a path in a turn of the loop, and
writes that to the socket of every watcher of the path. There is no log, no topic and no cursor, and
a slow watcher loses what its socket does not take. `python -m bench.bare_push PORT`.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop

from bench.bare import FIXED

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


class Connection(asyncio.Protocol):
    """A writer, or a watcher once it has sent a GET."""

    def __init__(self, fan: Fan) -> None:
        self.fan = fan

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1]
        if data.startswith(b"GET"):
            self.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")  # type: ignore[attr-defined]
            fd = self.transport.get_extra_info("socket").fileno()
            self.fan.descriptors.setdefault(path, []).append(fd)
        else:
            self.fan.put(path, data.partition(b"\r\n\r\n")[2])
            self.transport.write(FIXED)  # type: ignore[attr-defined]


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    fan = Fan(loop)
    server = await loop.create_server(lambda: Connection(fan), "127.0.0.1", port, backlog=2_000)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
