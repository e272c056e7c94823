"""A part tells the server once a second how it is, and takes commands from it.

Reports go to the topic `penstock.parts.<kind>.<node>`, commands come as records of
`penstock.commands.<kind>.<node>` and are answered there. A server that is away costs the part
nothing: reports are skipped, and the first one after that tells everything.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

import msgspec

import penstock
from penstock.client import AsyncClient, ClientSettings, Record
from penstock.client.retry import RetryPolicy
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError, Rejected
from penstock.protocol.errors import Forbidden, Unauthorized
from penstock.protocol.own_topics import commands_topic, part_topic
from penstock.protocol.part_answers import (
    ANSWER_TAG,
    COMMAND_TAG,
    GOODBYE_TAG,
    REPORT_EVERY_MS,
    STATUS_TAG,
    PartAnswer,
    PartCommand,
    PartReport,
)

TIMEOUT_S: Final = 5.0
LISTEN_MS: Final = 20_000
"""How long the server is asked to wait for a command."""
AGAIN_S: Final = 1.0
REFUSED_S: Final = 60.0
"""How long to wait after the server refused: its key may be changed meanwhile."""
_LISTENING: Final = "listening"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")

Look = Callable[[bool], Mapping[str, PartReport]]
"""The reports of a process by part; it is told whether the server missed the last one."""
Obey = Callable[[PartCommand], PartAnswer]
Say = Callable[[str], None]


def node_name(wanted: str = "") -> str:
    """The name of this machine in the names of topics."""
    name = wanted or socket.gethostname()
    return _NOT_IN_NAMES.sub("-", name).strip("-") or "node"


def report_of(
    clock: Clock,
    since_ms: int,
    *,
    state: str = "ok",
    text: str = "",
    behind: int | None = None,
    facts: Mapping[str, object] | None = None,
    pid: int | None = None,
) -> PartReport:
    """A report of this process, or of one that it looks after."""
    return PartReport(
        at=clock.now_ms(),
        since=since_ms,
        pid=os.getpid() if pid is None else pid,
        host=socket.gethostname(),
        version=penstock.__version__,
        state=state,
        text=text,
        behind=behind,
        facts=dict(facts or {}),
    )


class Reporter:
    """Reports on a running loop: `run`, and `end` for the last report."""

    def __init__(
        self, server: ClientSettings, look: Look, *, say: Say, obey: tuple[str, Obey] | None = None
    ) -> None:
        """`obey` is the part that takes commands, and what carries them out."""
        # One try: the next report is a second away.
        self._client = AsyncClient(
            replace(server, retry=RetryPolicy(tries_max=1), timeout_s=TIMEOUT_S)
        )
        self._look = look
        self._say = say
        self._obey = obey
        self._told: dict[str, PartReport] = {}
        self._missed = True
        self._changed = asyncio.Event()
        self._refusal: str | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        listening = asyncio.ensure_future(self._listen()) if self._obey else None
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while True:
                self._changed.clear()
                pause_s = await self._report()
                due_s = max(due_s + pause_s, loop.time())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), due_s - loop.time())
        finally:
            if listening is not None:
                listening.cancel()

    async def end(self) -> None:
        """Say that the parts ended in good order, so that they are not missed."""
        with suppress(PenstockError):
            for part, report in self._told.items():
                await self._write(part, report, GOODBYE_TAG)
        await self._client.aclose()

    async def _report(self) -> float:
        """Report once; returns how long to wait for the next report."""
        reports = self._look(self._missed)
        gone = self._told.keys() - reports.keys()
        try:
            for part in gone:
                await self._write(part, self._told.pop(part), GOODBYE_TAG)
            await asyncio.gather(*(self._write(*each, STATUS_TAG) for each in reports.items()))
        except PenstockError as error:
            self._missed = True
            if not isinstance(error, Rejected):
                return REPORT_EVERY_MS / 1_000
            if self._refusal != error.message:
                self._refusal = error.message
                self._say(f"the server takes no reports of this part: {error.message}")
            return REFUSED_S
        self._missed, self._refusal = False, None
        self._told |= reports
        return REPORT_EVERY_MS / 1_000

    async def _write(self, part: str, report: PartReport, tag: str) -> None:
        record = Record(msgspec.json.encode(report), tag=tag)
        await self._client.write(
            part_topic(part), [record], idempotency_key=None, return_seqs=False
        )

    # Commands

    async def _listen(self) -> None:
        """Carry out commands until cancelled."""
        while True:
            try:
                await self._take_commands()
            except PenstockError as error:
                refused = isinstance(error, Unauthorized | Forbidden)
                await asyncio.sleep(REFUSED_S if refused else AGAIN_S)

    async def _take_commands(self) -> None:
        """Follow the topic of commands from now on: what came before was for an earlier process."""
        assert self._obey is not None
        part, obey = self._obey
        topic, client = commands_topic(part), self._client.within(LISTEN_MS / 1_000 + TIMEOUT_S)
        hello = Record({"pid": os.getpid()}, tag=_LISTENING)
        from_seq = (await self._client.write(topic, [hello], idempotency_key=None)).last_seq
        epoch: int | None = None
        while True:
            page = await client.diff(
                topic, from_seq=from_seq, epoch=epoch, wait_ms=LISTEN_MS, include_tags=True
            )
            from_seq, epoch = page.next_from_seq, page.epoch
            for record in page.records:
                if record.tag == COMMAND_TAG:
                    command = msgspec.json.decode(record.data_json, type=PartCommand)
                    answer = Record(msgspec.json.encode(obey(command)), tag=ANSWER_TAG)
                    self._changed.set()
                    await self._client.write(topic, [answer], idempotency_key=None)


class ReporterThread:
    """A reporter on a loop of its own, for a part that has none."""

    def __init__(self, server: ClientSettings, look: Look, *, say: Say) -> None:
        self._server, self._look, self._say = server, look, say
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        reporter = Reporter(self._server, self._look, say=self._say)
        reporting = asyncio.ensure_future(reporter.run())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((reporting, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (reporting, stopping):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
        await reporter.end()
