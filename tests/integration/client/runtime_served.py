"""A real server in a thread of the test, with a rule that the test sets; and a bad network."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.app.server import Server
from penstock.client import ClientSettings
from penstock.config import Settings
from penstock.flow.backoff import Backoff
from penstock.protocol.commits import Commit
from penstock.protocol.errors import CommitConflict

DEADLINE_S = 60.0
Rule = Callable[[Commit], None]


class ServedSpaces:
    """A running server. `rule` may refuse any commit that passed every check, by raising."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, url: str) -> None:
        self._loop = loop
        self._server = server
        self.url = url
        self.seen: list[Commit] = []
        self._rule: Rule | None = None
        self._call(self._install)

    @property
    def settings(self) -> ClientSettings:
        return settings_of(self.url)

    def refuse(self, rule: Rule | None) -> None:
        """From now on."""
        self._call(lambda: setattr(self, "_rule", rule))

    def _install(self) -> None:
        assert self._server.engine is not None
        self._server.engine.spaces.rule = self._judge

    def _judge(self, space: str, commit: Commit) -> None:
        self.seen.append(commit)
        if self._rule is not None:
            self._rule(commit)

    def _call(self, work: Callable[[], Any]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)


def settings_of(url: str) -> ClientSettings:
    return ClientSettings(
        url,
        timeout_s=DEADLINE_S,
        reconnect=Backoff(base_ms=10, cap_ms=200, jitter=0.5, window_ms=DEADLINE_S * 1_000),
        streams_max=128,
        connections_max=128,
    )


@contextmanager
def served_spaces(directory: Path) -> Iterator[ServedSpaces]:
    """A server until the block ends."""
    found: list[ServedSpaces] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loops.append(loop)
        server = Server(
            Settings(port=0, store="memory", data_dir=directory, log="off", drain_ms=1_000)
        )
        host, port = await server.listen()
        await server.open()
        ready.set()
        found.append(await asyncio.to_thread(ServedSpaces, loop, server, f"http://{host}:{port}"))
        installed.set()
        await stop.wait()
        await server.close()

    installed = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert installed.wait(DEADLINE_S)
        yield found[0]
    finally:
        if loops:
            loops[0].call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)


def conflict(commit: Commit) -> None:
    """A rule under which every commit conflicts, although nothing has changed."""
    raise CommitConflict(commit.writes[0].entity, basis=0, current=0)


def conflicts(times: int) -> Rule:
    """A rule under which so many commits conflict, then no more."""
    left = [times]

    def rule(commit: Commit) -> None:
        if left[0]:
            left[0] -= 1
            conflict(commit)

    return rule


class Proxy:
    """A way to a server that can cut the answers to commits, after the server has made them."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        """Answers to commits that shall yet be cut."""
        self.cut = 0
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            self._end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets |= {near, far}
                state = {"commit": False}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, source is near, state), daemon=True
                    ).start()

    def _pump(self, source: Any, sink: Any, outward: bool, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if outward:
                    state["commit"] = data.startswith(b"POST") and b"/commits HTTP" in data
                elif state["commit"] and self.cuts > 0:
                    self.cuts -= 1
                    self.cut += 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            self._end(each)

    def _end(self, each: socket.socket) -> None:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
        self._sockets.discard(each)


def append(tx: Any, event: Any) -> None:
    tx.set("list", [*tx.get("list", default=[]), event.data])


def increment(tx: Any, event: Any) -> None:
    tx.set("count", tx.get("count", default=0) + 1)
