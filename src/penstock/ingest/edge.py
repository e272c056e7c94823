"""The complete network edge: port, core, windows and appender."""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from penstock.flow.channel import MEASURE_MS
from penstock.flow.meter import Stage
from penstock.flow.planner import PlannerPolicy
from penstock.ingest.accept import EdgeCore
from penstock.ingest.appender import Appender
from penstock.ingest.backlog import Downstream
from penstock.ingest.connection import READ_BYTES_MAX, DeviceConnection
from penstock.ingest.frames import OFFENDING_BYTES_MAX, ErrorCode, FrameError
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.raw_topic import RawTopic
from penstock.ingest.sessions import Session
from penstock.ingest.status import Numbers, status_values
from penstock.ingest.tokens import DeviceTokens
from penstock.ingest.windows import Windows
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError, Rejected
from penstock.kernel.system import SystemClock

REJECTS_WAITING_MAX: Final = 1_000
SWEEP_TICKS: Final = 10
_BACKLOG: Final = 4_096
_LOGGER: Final = logging.getLogger("penstock.ingest")


class Edge:
    """Takes messages of devices into a durable topic.

    `start`, then `stop` in good order. `stages` are those behind the topic, first to last, that
    share the planner; `downstream` may ask the edge to hold back.
    """

    def __init__(
        self,
        topic: RawTopic,
        *,
        limits: EdgeLimits | None = None,
        tokens: DeviceTokens | None = None,
        policy: PlannerPolicy | None = None,
        stages: Sequence[Stage] = (),
        downstream: Downstream | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.limits = limits or EdgeLimits()
        self._clock: Clock = clock or SystemClock()
        self.core = EdgeCore(self.limits, self._clock, tokens=tokens, on_reject=self._rejected)
        self.windows = Windows([*self.core.stages, *stages], policy=policy, warn=_LOGGER.warning)
        self.rejects_dropped = 0
        self._topic = topic
        self._tls = tls
        self._downstream = downstream
        self._appender = Appender(
            self.core, topic, clock=self._clock, random=Random(), downstream=downstream
        )
        self._buffer = bytearray(READ_BYTES_MAX)
        self._connections: set[DeviceConnection] = set()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._rejects: deque[bytes] = deque()
        self._reject_wake = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, host: str = "127.0.0.1", port: int = 4100) -> tuple[str, int]:
        """Learn what is durable already, then listen. Returns the address that was bound."""
        await self._appender.recover()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: DeviceConnection(self.core, self._buffer, self._connections),
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=self.limits.hello_ms / 1_000 if self._tls else None,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise Rejected(
                f"cannot listen on {host}:{port}: {error.strerror or error}: choose another port"
            ) from error
        for work in (self._appender.run(), self._tick(), self._write_rejects()):
            self._tasks.append(asyncio.ensure_future(work))
            self._tasks[-1].add_done_callback(self._ended)
        return self.address

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        if self._server is None or not self._server.sockets:
            raise Rejected("the edge does not listen yet: start it first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def head_seq(self) -> int:
        """The last seq of the raw topic that the edge knows of."""
        return self._appender.head_seq

    async def stop(self, drain_s: float = 10.0) -> None:
        """Stop reading, make received messages durable, acknowledge them, and close."""
        if self._server is not None:
            self._server.close()
        self.core.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._appender.drained(), drain_s)
        for session in list(self.core.sessions):
            self.core.fail(
                session, FrameError(ErrorCode.SHUTTING_DOWN, "the edge ends: connect again later")
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        await self._appender.checkpoint()
        await self._topic.close()

    # What people see

    def numbers(self, behind: int | None = None) -> Numbers:
        """What is measured now; `behind`: how many messages wait in the topic."""
        return Numbers(self.core, self.windows, self._appender.retries, behind)

    def status(self) -> dict[str, Any]:
        """The stages, the bottleneck and the numbers of the edge as plain values."""
        return status_values(self.windows.status(), self.numbers().edge())

    def prometheus(self) -> bytes:
        """The same as Prometheus text."""
        return self.numbers().prometheus()

    # What goes on beside

    async def _tick(self) -> None:
        """Measure every 100 ms, plan every second, and end what takes too long."""
        loop = asyncio.get_running_loop()
        due_s, ticks = loop.time(), 0
        while True:
            due_s = max(due_s + MEASURE_MS / 1_000, loop.time())
            await asyncio.sleep(due_s - loop.time())
            now_ms = self._clock.monotonic_ms()
            self.windows.tick(now_ms)
            if self._downstream is not None:
                self._downstream.measure(now_ms)
            self.core.pump()
            ticks += 1
            if ticks % SWEEP_TICKS == 0:
                self._sweep()

    async def failed(self) -> None:
        """Never return, unless a part of the edge fails: then raise its error."""
        await asyncio.shield(self._failure)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._failure.done():
            self._failure.set_exception(task.exception() or AssertionError("it just ended"))

    def _sweep(self) -> None:
        self.core.sweep()
        now_ms = self._clock.monotonic_ms()
        for connection in list(self._connections):
            connection.sweep(now_ms, self.limits.write_stall_ms)

    def _rejected(self, session: Session, error: FrameError, offending: bytes) -> None:
        if len(self._rejects) >= REJECTS_WAITING_MAX:
            self.rejects_dropped += 1
            return
        link = session.link
        self._rejects.append(
            msgspec.json.encode(
                {
                    "device": None if session.device is None else session.device.name,
                    "peer": link.peer if isinstance(link, DeviceConnection) else None,
                    "code": error.error_code.name.lower(),
                    "error": error.message,
                    "message_id": error.message_id or None,
                    "bytes": b64encode(offending[:OFFENDING_BYTES_MAX]).decode(),
                }
            )
        )
        self._reject_wake.set()

    async def _write_rejects(self) -> None:
        """Write what was wrong to the reject topic; what does not fit meanwhile is counted."""
        while True:
            await self._reject_wake.wait()
            self._reject_wake.clear()
            records = list(self._rejects)
            try:
                await self._topic.reject(records)
            except PenstockError as error:
                _LOGGER.warning("rejects could not be written: %s", error)
                await asyncio.sleep(1.0)
                self._reject_wake.set()
            else:
                for _ in records:
                    self._rejects.popleft()
