"""A part is started again when it ends, unless another start would not help."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app import part as parts
from penstock.app.part import Part
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected, Unavailable
from tests.waiting import until

STAND_IN = """
import os, sys, time
from pathlib import Path
if sys.argv[1:2] != ["act"]:
    sys.exit(0)
exec(Path("script.py").read_text())
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch) -> Callable[[str], tuple[Part, list[str]]]:
    """A part that runs a script instead of a command of ours, and what is said of it."""
    package = tmp_path / "modules" / "penstock"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    pause = Backoff(base_ms=1, cap_ms=2, jitter=0.0, window_ms=float("inf"))
    monkeypatch.setattr(parts, "BACKOFF", pause)
    sign = tmp_path / "sign"

    def make(script: str) -> tuple[Part, list[str]]:
        (tmp_path / "script.py").write_text(script)
        said: list[str] = []

        async def is_ready() -> bool:
            return sign.exists()

        part = Part(
            "part", ["act"], is_ready, lambda _, line: said.append(line),
            sign=sign, directory=tmp_path,
        )  # fmt: skip
        return part, said

    return make


READY = "print('at work', flush=True)\nPath('sign').touch()\ntime.sleep(600)\n"


async def kept(part: Part) -> asyncio.Task[None]:
    task = asyncio.ensure_future(part.keep())
    await asyncio.wait_for(part.ready.wait(), 30)
    return task


def test_a_part_that_is_killed_starts_again_and_says_so(make):
    async def run() -> list[str]:
        part, said = make(READY)
        task = await kept(part)
        first = part.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: part.pid not in (None, first))
        await asyncio.wait_for(part.ready.wait(), 30)
        await part.stop()
        await task
        assert part.pid is None
        return said

    said = asyncio.run(run())
    assert "ended (killed by SIGKILL); starts again in 0.001 s" in said
    assert said.count("at work") == 2


def test_a_part_that_ends_before_it_was_ready_is_given_up_with_its_last_line(make):
    part, _ = make("print('first')\nsys.exit('the port is taken')")
    with pytest.raises(Unavailable, match=r"part ended before .*exit code 1.*the port is taken"):
        asyncio.run(part.keep())


def test_wrong_usage_is_never_tried_again(make):
    part, _ = make("print('no such option')\nsys.exit(2)")
    with pytest.raises(Rejected, match="part: no such option"):
        asyncio.run(part.keep())
    assert part.starts == 1


def test_a_part_that_was_ready_once_is_given_up_after_many_fruitless_starts(make, tmp_path):
    once = "Path('sign').touch()\nwhile not Path('over').exists(): time.sleep(0.01)\nsys.exit(1)"
    script = f"if Path('seen').exists(): sys.exit('broken')\nPath('seen').touch()\n{once}"

    async def run() -> int:
        part, _ = make(script)
        task = await kept(part)
        (tmp_path / "over").touch()
        with pytest.raises(Unavailable, match="broken"):
            await task
        return part.starts

    assert asyncio.run(run()) == parts.FRUITLESS_MAX + 2


def test_a_part_that_is_stopped_while_it_waits_to_start_again_stays_ended(make, monkeypatch):
    monkeypatch.setattr(parts, "BACKOFF", Backoff(60_000, 60_000, 0.0, float("inf")))

    async def run() -> None:
        part, said = make(READY)
        task = await kept(part)
        part.signal(signal.SIGKILL)
        await until(lambda: any("starts again in 60 s" in line for line in said))
        await part.stop()
        await asyncio.wait_for(task, 5)
        assert part.starts == 1

    asyncio.run(run())


def test_a_line_without_end_does_not_stop_the_part(make):
    async def run() -> list[str]:
        part, said = make("sys.stdout.write('x' * (3 << 20) + '\\n')\n" + READY)
        task = await kept(part)
        await until(lambda: "at work" in said)
        await part.stop()
        await task
        return said

    assert "at work" in asyncio.run(run())
