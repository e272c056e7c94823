"""One run of the demonstration: its script, its keys, and the verdict."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
import webbrowser
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from penstock.demo.plant import Plant
from penstock.demo.proof import prove, why_unprovable
from penstock.demo.view import how_far, moment_line, view
from penstock.kernel.errors import Unavailable

CHECK_S: Final = 30.0
"""How long the meters send in a check by default."""
BURST_AT, TARIFF_AT, CALM_AT, KILL_AT, WORKER_AT = 0.25, 0.4, 0.5, 0.6, 0.75
"""When a check runs its steps, as shares of its duration: burst, tariff, calm and two kills."""
LOOK_S: Final = 1.0


class Tour:
    """One run, from the start of the first process to the end of the last."""

    def __init__(self, directory: Path, *, check: bool, seconds: float | None) -> None:
        self.plant = Plant(directory, self._say)
        self._check = check
        self._seconds = seconds
        self._console = Console()
        self._live: Live | None = None
        self._event = ""
        self._over = asyncio.Event()
        self._skipped = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> bool:
        """Run to the end; returns whether every check passed."""
        missing = why_unprovable()
        if missing is not None and self._check:
            raise Unavailable(missing)
        plant = self.plant
        with ExitStack() as stack:
            try:
                await plant.start()
                self._open_dashboard()
                stack.enter_context(keys(self._struck))
                await self._shown()
                if missing is not None:
                    return self._unproven(missing)
                if not self._check:
                    self._say("q skips the proof")
                is_settled = await self._unless_skipped(plant.settle())
            finally:
                await asyncio.shield(plant.end())
            return await self._verdict() if is_settled else self._unproven("skipped")

    async def _verdict(self) -> bool:
        """Have the lake counted, and print the result; skipping it is not a failure."""
        self._say("DuckDB reads the lake and counts for itself")
        findings: list[tuple[bool, str]] = []

        async def proven() -> None:
            findings.extend(await prove(self.plant.catalog, self.plant.claim()))

        if not await self._unless_skipped(proven()):
            return self._unproven("skipped")
        for right, text in findings:
            click.echo(f"  {'✓' if right else '✗'} {text}")
        is_right = all(right for right, _ in findings)
        click.echo(f"    {how_far(self.plant.fastest.per_s)}")
        click.echo("all is right" if is_right else "something is WRONG: see ✗ above")
        return is_right

    def _unproven(self, why: str) -> bool:
        click.echo(f"not proven: {why}")
        return True

    async def _unless_skipped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for something; False if it was skipped by a second `q`."""
        task = asyncio.ensure_future(work)
        skip = asyncio.ensure_future(self._skipped.wait())
        try:
            await asyncio.wait((task, skip), return_when="FIRST_COMPLETED")
            if task.done():
                task.result()
            return task.done()
        finally:
            skip.cancel()
            task.cancel()
            await asyncio.wait((task,))

    async def _shown(self) -> None:
        """Show the view, and run the script of a check beside it."""
        script = asyncio.ensure_future(self._script())
        try:
            if self._console.is_terminal:
                with Live(console=self._console, screen=True, auto_refresh=False) as live:
                    self._live = live
                    await self._look_until(script)
            else:
                await self._look_until(script)
        finally:
            self._live = None
            self._over.set()
            script.cancel()

    async def _look_until(self, script: asyncio.Future[None]) -> None:
        over = asyncio.ensure_future(self._over.wait())
        while not over.done() and not script.done():
            moment = await self.plant.look()
            if self._live is not None:
                width, height = self._console.size
                shown = view(moment, self._event, self.plant.up.server_url, width, height)
                self._live.update(shown, refresh=True)
            else:
                click.echo(moment_line(moment))
            await asyncio.wait((over, script), timeout=LOOK_S, return_when="FIRST_COMPLETED")
        over.cancel()
        if script.done():
            script.result()

    async def _script(self) -> None:
        """The scripted actions: in a check all of them, else only the end, if one was given."""
        if self._seconds is None:
            await asyncio.Event().wait()
        elif not self._check:
            await asyncio.sleep(self._seconds)
        else:
            plant, seconds = self.plant, self._seconds
            await asyncio.sleep(seconds * BURST_AT)
            plant.burst()
            await asyncio.sleep(seconds * (TARIFF_AT - BURST_AT))
            await plant.change_tariff()
            await asyncio.sleep(seconds * (CALM_AT - TARIFF_AT))
            plant.burst()
            await asyncio.sleep(seconds * (KILL_AT - CALM_AT))
            await plant.kill_server()
            await asyncio.sleep(seconds * (WORKER_AT - KILL_AT))
            await plant.kill_worker()
            await asyncio.sleep(seconds * (1 - WORKER_AT))

    def _struck(self, key: str) -> None:
        plant = self.plant
        match key:
            case "q":
                (self._skipped if self._over.is_set() else self._over).set()
            case _ if self._over.is_set():
                return  # it is draining
            case "b":
                plant.burst()
            case "p":
                plant.pause()
            case "t":
                self._do(plant.change_tariff())
            case "w":
                self._do(plant.kill_worker())
            case "s":
                self._do(plant.kill_server())

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_dashboard(self) -> None:
        """Say where the dashboard is; where a person sits at a desktop, open it."""
        url = f"{self.plant.up.server_url}/"
        self._say(f"dashboard: {url}")
        if not self._check and has_desktop(os.environ):
            self._do(asyncio.to_thread(webbrowser.open, url))

    def _say(self, text: str) -> None:
        self._event = text
        if self._live is None:
            click.echo(f"     ▸ {text}")


def has_desktop(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser can be shown: not over SSH, and with a display.

    >>> has_desktop({"DISPLAY": ":0"}, "linux"), has_desktop({}, "linux"), has_desktop({}, "darwin")
    (True, False, True)
    >>> has_desktop({"SSH_CONNECTION": "::1", "DISPLAY": ":10"}, "linux")
    False
    """
    if "SSH_CONNECTION" in environ:
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@contextmanager
def keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Pass on every key pressed during this context; does nothing without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()
    tty.setcbreak(fd)
    loop.add_reader(fd, lambda: on_key(os.read(fd, 1).decode("ascii", "ignore").lower()))
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
