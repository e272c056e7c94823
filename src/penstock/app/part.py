"""One part of `penstock up`: a child process that is restarted when it exits."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.config import child_environ
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import PenstockError, Rejected, Unavailable

BACKOFF: Final = Backoff(base_ms=250, cap_ms=15_000, jitter=0.0, window_ms=float("inf"))
"""How long to wait before a part is restarted."""
STEADY_S: Final = 60.0
"""A part that ran for longer is restarted as quickly as after its first exit."""
FRUITLESS_MAX: Final = 10
"""How often in a row a part may exit before it is ready; then everything stops."""
END_S: Final = 75.0
"""How long a graceful stop of a part may take: longer than each part's own limits."""
LOOK_S: Final = 0.05
LINE_BYTES_MAX: Final = 1 << 20
WRONG_USAGE: Final = 2
_PR_SET_PDEATHSIG: Final = 1

OnLine = Callable[[str, str], None]
"""Takes the name of a part and a line of its output."""


class Part:
    """A `penstock` command that is kept running.

    `is_ready` is polled after each start; it raises if waiting cannot help. `sign`, a file in which
    the part writes where it listens, is removed before. A part that exits is restarted after a
    delay that doubles. One that exits before it was ever ready, or too often in a row, is given up:
    a restart would not help.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        is_ready: Callable[[], Awaitable[bool]],
        on_line: OnLine,
        *,
        sign: Path | None = None,
        directory: Path | None = None,
        inherit: bool = True,
    ) -> None:
        self.name = name
        self.own: dict[str, str] = {}
        """Variables that override those of the inherited environment."""
        self.ready = asyncio.Event()
        """Set while it is running and ready."""
        self.starts = 0
        self._arguments = arguments
        self._is_ready = is_ready
        self._on_line = on_line
        self._sign = sign
        self._directory = directory
        self._inherit = inherit
        self._process: Process | None = None
        self._stop = asyncio.Event()
        self._was_ready = False
        self._hopeless: PenstockError | None = None
        self._last_line = ""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def keep(self) -> None:
        """Run it, and restart it when it exits; returns after `stop`, raises if given up."""
        loop = asyncio.get_running_loop()
        failures = fruitless = 0
        while not self._stop.is_set():
            began_s = loop.time()
            code = await self._run_once()
            if self._stop.is_set():
                return
            if self._hopeless is not None:
                raise self._hopeless
            failures = 1 if loop.time() - began_s > STEADY_S else failures + 1
            fruitless = 0 if self.ready.is_set() else fruitless + 1
            self.ready.clear()
            if code == WRONG_USAGE:
                raise Rejected(f"{self.name}: {self._last_line}")
            if not self._was_ready or fruitless > FRUITLESS_MAX:
                raise Unavailable(
                    f"{self.name} ended before it was ready ({_meaning(code)}): {self._last_line}"
                )
            pause_s = BACKOFF.nominal_ms(failures) / 1e3
            self._on_line(self.name, f"ended ({_meaning(code)}); starts again in {pause_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """Stop it and start it again, with the current `own`."""
        self.signal(signal.SIGTERM)

    async def replace(self) -> None:
        """Kill it, as a crash would; returns when the next process is ready."""
        starts = self.starts
        self.signal(signal.SIGKILL)
        while self.starts == starts or not self.ready.is_set():
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Stop it gracefully, or kill it if that takes too long."""
        self._stop.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        self.kill()

    def kill(self) -> None:
        """Kill it at once; acknowledged data is durable."""
        self._stop.set()
        self.signal(signal.SIGKILL)

    async def _run_once(self) -> int:
        """Start it and wait for its exit; returns the exit code."""
        self.starts += 1
        self._last_line = "it said nothing"
        if self._sign is not None:
            self._sign.unlink(missing_ok=True)  # from the previous process
        # In its own session: Ctrl-C at the terminal is for `up`, which stops its parts in order.
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", *self._arguments,
            env=child_environ(self.own, inherit=self._inherit), cwd=self._directory,
            stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT, limit=LINE_BYTES_MAX,
            start_new_session=True, preexec_fn=_END_WITH_PARENT,
        )  # fmt: skip
        if self._stop.is_set():  # while it was starting
            process.terminate()
        looking = asyncio.ensure_future(self._look(process))
        try:
            await self._forward(process)
            return await process.wait()
        finally:
            looking.cancel()

    async def _look(self, process: Process) -> None:
        """Wait until it is ready, or end it if it can never be."""
        try:
            while process.returncode is None:
                if await self._is_ready():
                    self.ready.set()
                    self._was_ready = True
                    return
                await asyncio.sleep(LOOK_S)
        except PenstockError as error:
            self._hopeless = error
            self.signal(signal.SIGTERM)

    async def _forward(self, process: Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than any line should be: the rest is read as the next line
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if text:
                self._last_line = text
                self._on_line(self.name, text)


def _meaning(code: int) -> str:
    """What an exit code says.

    >>> _meaning(-9), _meaning(1)
    ('killed by SIGKILL', 'exit code 1')
    """
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _end_with_parent() -> Callable[[], None] | None:
    """A preexec function that stops the child gracefully when this process is killed; on Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up now: little is safe between fork and exec
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_END_WITH_PARENT: Final = _end_with_parent()
