"""What a connection leaves behind when it ends: nothing that waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
import websockets

from bench.load import post
from penstock.app.server import Server
from penstock.config import Settings

CONNECTIONS = 20
RECORD = b'{"records":[{"data":1}]}'
EVENTS = b"GET %b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
SESSIONS = {"WatcherSession", "WatchRequest", "StartPlace"}  # a session outlives its streams

Visit = Callable[[int], Awaitable[None]]


async def ask(port: int, request: bytes, until: bytes = b"}") -> bytes:
    """What a server answers on a connection of its own, up to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    while until not in answer:
        answer += await reader.read(1 << 16) or until
    writer.close()
    return answer


async def write(port: int) -> None:
    await ask(port, post("/v0/topics/t", RECORD))


async def refused(port: int) -> None:
    await ask(port, post("/v0/topics/t", b"[]"))


async def poll(port: int) -> None:
    await ask(port, post("/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":2}'))


async def watch(port: int) -> None:
    answer = await ask(port, post("/v0/watch", b'{"topics":{"t":{"tail":true}}}'))
    wid = json.loads(answer.partition(b"\r\n\r\n")[2])["wid"]
    await ask(port, EVENTS % f"/v0/watch/{wid}".encode(), b"caught-up")


async def work(port: int) -> None:
    await ask(port, EVENTS % b"/v0/topics/q/work?node=n", b"event: job")


async def talk(port: int) -> None:
    async with websockets.connect(f"ws://127.0.0.1:{port}/v0/ws") as socket:
        await socket.send(json.dumps({"op": "subscribe", "topic": "t", "tail": True}))
        await socket.recv()
        await socket.send(json.dumps({"op": "publish", "topic": "t", "records": [{"data": 1}]}))
        while "ack" not in str(await socket.recv()):
            pass


async def gone(server: Server) -> None:
    """Wait until no connection is open."""
    async with asyncio.timeout(30):
        while server._listener.connections_open:
            await asyncio.sleep(0)
        await asyncio.sleep(0)


def ours() -> Counter[str]:
    """Our objects that the collector knows, by the names of their types."""
    types = [type(each) for each in gc.get_objects()]
    return Counter(each.__name__ for each in types if each.__module__.startswith("penstock."))


@pytest.mark.parametrize("visit", [write, refused, poll, watch, work, talk])
def test_a_connection_that_ends_leaves_no_circles(visit: Visit, tmp_path: Path) -> None:
    async def test() -> None:
        server = Server(Settings(data_dir=tmp_path, port=0))
        _, port = await server.listen()
        await server.open()
        put = post("/v0/topics/q", b'{"type":"queue"}').replace(b"POST", b"PUT", 1)
        await ask(port, put)
        await ask(port, post("/v0/topics/q", RECORD))
        await write(port)
        await visit(port)
        await gone(server)
        gc.collect()
        gc.disable()
        before = ours()
        for _ in range(CONNECTIONS):
            await visit(port)
        await gone(server)
        more = {name for name, count in (ours() - before).items() if count >= CONNECTIONS}
        gc.enable()
        await server.close()
        assert more <= SESSIONS

    try:
        uvloop.run(test())
    finally:
        gc.enable()
