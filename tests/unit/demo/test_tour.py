"""What `penstock demo` shows, and what its keys do, without the plant."""

from __future__ import annotations

import asyncio
import io
import time
import webbrowser
from types import SimpleNamespace

import pytest
from rich.console import Console

from penstock.demo import tour as showing
from penstock.demo.plant import Moment
from penstock.demo.story import TABLES
from penstock.demo.tour import Tour
from penstock.demo.view import KEYS, bar, view
from penstock.tables.core.health import TableHealth
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.verdict import Reason

STAGES = ("accept", "reassemble", "parse", "evaluate", "store")


def status(name: str) -> TableHealth:
    return TableHealth(
        table=name, status=Status.ACTIVE, mode=Mode.AUTO, schedule="2s", unit_key=name,
        reason=Reason.IN_FLIGHT, waiting_for="usage_per_hour, charges_per_meter and others",
        fresh_ms=round(time.time() * 1_000) - 12_000, due_ms=None, failures=0, frontier=None,
    )  # fmt: skip


def moment(*, trouble: str | None = None) -> Moment:
    stages = [
        {"name": name, "window": 65_536, "occupancy": 0.97, "rate_per_s": 123_456.0,
         "p50_ns": 123_000_000, "p99_ns": 9_123_000_000}
        for name in STAGES
    ]  # fmt: skip
    ingest = {
        "stages": stages, "bottleneck": "evaluate",
        "pipeline": {"behind": 1_234_567, "trouble": trouble, "stored_seq": 1, "tariffs": None},
    }  # fmt: skip
    return Moment(
        at_s=12_345.0, offered=9_999_999, acked=9_876_543, ingest=ingest,
        scheduler={"pressure": 0.93, "rung": "refuse"},
        rows={"readings": 123_456_789, "charges": 123_456_789, "dead_letters": 12},
        tables=[status(name) for name in TABLES], workers=(1, 2, 3),
    )  # fmt: skip


def screen(found: Moment, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    event = "the topic server is killed with SIGKILL and started again, and this goes on and on"
    console.print(view(found, event, "http://127.0.0.1:54321", width, height))
    return console.file.getvalue().rstrip("\n").splitlines()


@pytest.mark.parametrize("trouble", [None, "expected a Penstock server, found none " * 9])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_everything_fits_and_all_keys_are_on_the_last_line(trouble, width, height):
    lines = screen(moment(trouble=trouble), width, height)
    assert len(lines) <= height
    assert all(any(table in line for line in lines) for table in TABLES)
    assert max(map(len, lines)) <= width
    for key, words in KEYS:
        assert f" {key} {words}" in lines[-1]


def test_the_stages_have_headings_above_their_columns():
    lines = screen(moment())
    heading = next(line for line in lines if "stage " in line and "window" in line)
    below = lines[lines.index(heading) + 1]
    assert below.startswith("│ accept")
    for name, text in (("window", "65,536"), ("rate", "123,456/s"), ("p50", "123 ms")):
        end = heading.index(name) + len(name)
        assert below[end - len(text) : end] == text
    for name in ("occupied", "p99"):
        assert name in heading


def test_full_and_empty_bars_differ_without_colour():
    full, half, empty = (bar(share, 10, "red").plain for share in (1.0, 0.5, 0.0))
    assert len({full, half, empty}) == 3
    assert half == full[:5] + empty[5:]


class Draining:
    """A plant that never has drained."""

    catalog = "sqlite:none"
    up = SimpleNamespace(server_url="http://127.0.0.1:4000")

    def __init__(self) -> None:
        self.settles = self.ended = False

    async def start(self) -> None:
        pass

    async def settle(self) -> None:
        self.settles = True
        await asyncio.Event().wait()

    async def end(self) -> None:
        self.ended = True


def test_a_second_q_skips_the_proof(tmp_path, monkeypatch, capsys):
    async def run() -> bool:
        tour = Tour(tmp_path, check=False, seconds=None)
        plant = Draining()
        monkeypatch.setattr(tour, "plant", plant)
        monkeypatch.setattr(webbrowser, "open", lambda url: None)
        monkeypatch.setattr(tour, "_look_until", lambda _script: tour._over.wait())
        monkeypatch.setattr(showing, "why_unprovable", lambda: None)
        running = asyncio.ensure_future(tour.run())
        tour._struck("q")
        while not plant.settles:
            await asyncio.sleep(0)
        tour._struck("b")  # no longer listened to
        tour._struck("q")
        is_right = await running
        assert plant.ended
        return is_right

    assert asyncio.run(asyncio.wait_for(run(), 30))
    said = capsys.readouterr().out
    assert "q skips the proof" in said
    assert "not proven: skipped" in said
