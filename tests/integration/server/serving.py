"""A listener on a loop of its own thread, and what tests need to look at it from outside."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from penstock.server.http import Listener
from penstock.server.http.message import Application, TransportLimits

DEADLINE_S = 20.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
T = TypeVar("T")


class Served:
    """A running listener."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.listener, self.loop, self.port = listener, loop, port

    def call(self, work: Callable[[], T]) -> T:
        """Run something on the loop's thread."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE_S)

    def wait(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop to its end."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def connect(self, *, receive_buffer_bytes: int | None = None) -> socket.socket:
        """A plain connection."""
        found = socket.socket()
        if receive_buffer_bytes is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        found.settimeout(DEADLINE_S)
        try:
            found.connect(("127.0.0.1", self.port))
        except OSError:
            found.close()
            raise
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that is true on the loop's thread sooner or later."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.call(condition):
            assert time.monotonic() < deadline, "waited in vain"


@contextmanager
def serving(
    application: Application,
    limits: TransportLimits | None = None,
    *,
    kind: str = "uvloop",
    tls: ssl.SSLContext | None = None,
) -> Iterator[Served]:
    """Serve on a free port until the block ends."""
    loop = LOOPS[kind]()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = Listener(application, limits, tls=tls)
    try:
        started = asyncio.run_coroutine_threadsafe(listener.start("127.0.0.1", 0), loop)
        _, port = started.result(DEADLINE_S)
        served = Served(listener, loop, port)
        yield served
        served.wait(listener.abort())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
