"""Cuts between nodes: a process between their peer ports that passes bytes on, or does not.

A node sends only on connections that it dialled, and says who it is in the first letter: so one
direction can be cut. A cut that is silent holds the bytes back and delivers them when it is mended;
one that is closed breaks connections and refuses new ones.

`python -m tests.integration.cluster.cuts` reads orders, a JSON array on each line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import uvloop

from penstock.cluster.frames import HEAD_BYTES

Pair = tuple[str, str]


class Cuts:
    """The process, as a test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.cluster.cuts"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stand_before(self, name: str, front: str, behind: str) -> None:
        """Listen at one address for the peers of a node, which listens at the other."""
        self._order("stand", name, front, behind)

    def cut(self, *pairs: Pair, is_silent: bool) -> None:
        """Let nothing through from the first to the second of each pair, in place of older cuts."""
        self._order("cut", [list(pair) for pair in pairs], is_silent)

    def mend(self) -> None:
        """Let everything through."""
        self._order("cut", [], False)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _order(self, *words: Any) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


class Between:
    """What passes bytes on, in the process."""

    def __init__(self) -> None:
        self._cuts: set[Pair] = set()
        self._is_silent = False
        self._open = asyncio.Event()
        self._passing: dict[asyncio.Transport, Pair] = {}
        self._servers: list[asyncio.Server] = []

    async def stand(self, name: str, front: str, behind: str) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(name, behind, reader, writer)
            writer.close()

        host, port = front.split(":")
        self._servers.append(await asyncio.start_server(serve, host, int(port)))

    def cut(self, pairs: list[list[str]], is_silent: bool) -> None:
        self._cuts, self._is_silent = {(a, b) for a, b in pairs}, is_silent
        if not is_silent:
            for transport, pair in list(self._passing.items()):
                if pair in self._cuts:
                    transport.abort()
        self._open.set()
        self._open = asyncio.Event()

    async def _serve(
        self, name: str, behind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readexactly(HEAD_BYTES)
        hello = await reader.readexactly(int.from_bytes(head[:4], "big"))
        pair = (str(msgspec.msgpack.decode(hello)[1][2][1]), name)
        if pair in self._cuts and not self._is_silent:
            return
        await self._pass_through(pair)
        host, port = behind.split(":")
        there_reader, there = await asyncio.open_connection(host, int(port))
        self._passing[writer.transport] = self._passing[there.transport] = pair
        there.write(head + hello)
        back = asyncio.create_task(self._pass(pair, there_reader, writer))
        try:
            await self._pass(pair, reader, there)
        finally:
            there.close()
            await back
            del self._passing[writer.transport], self._passing[there.transport]

    async def _pass(
        self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, RuntimeError):  # uvloop's word for a connection that is closed
            while data := await reader.read(65_536):
                await self._pass_through(pair)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _pass_through(self, pair: Pair) -> None:
        while pair in self._cuts:
            await self._open.wait()


async def obey() -> None:
    """Do what the lines of the input say, until it ends."""
    between, loop = Between(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, *words = json.loads(line)
        if verb == "stand":
            await between.stand(*words)
        else:
            between.cut(*words)
        print("done", flush=True)


if __name__ == "__main__":
    uvloop.run(obey())
