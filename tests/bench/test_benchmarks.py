from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from bench import __main__ as program
from bench.__main__ import benchmarks, main
from bench.report import Report

ROOT = Path(__file__).resolve().parents[2]
NAMES = benchmarks(ROOT / "bench")


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def kept() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (ROOT / "bench" / "results").iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_run_changes_only_constants_that_the_benchmark_has(name):
    module = importlib.import_module(f"bench.bench_{name}")
    assert module.TINY, "a benchmark says what a tiny run of it is"
    for constant, value in module.TINY.items():
        assert constant.isupper()
        assert type(value) is type(getattr(module, constant)) or isinstance(value, int | float)


LONG = ("auto", "cluster", "dashboard", "delta_scale", "differential", "freshness", "windows")
"""Even their tiny runs refresh dozens of tables on Spark, wait for windows, open browsers, or start
clusters."""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in NAMES if name not in LONG], id="short"),
        pytest.param(LONG, id="long", marks=pytest.mark.slow),
    ],
)
def test_every_benchmark_works_and_a_run_leaves_the_kept_results_alone(names):
    before = kept()
    done = bench("--tiny", *names)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
    for name in names:
        title = importlib.import_module(f"bench.bench_{name}").__doc__.partition("\n")[0]
        assert title in done.stdout, f"{name} showed no table"
    assert kept() == before


def test_a_peer_that_is_missing_is_left_out_with_one_line(tmp_path):
    for name in ("taskset", "setpriv"):  # what our own side needs, and neither Redis nor apt
        (tmp_path / name).symlink_to(shutil.which(name))
    done = bench("delivery", "--tiny", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("left out: Redis")]
    (line,) = said
    assert line.endswith("no redis-server here (Debian: apt-get install redis-server)")
    assert done.stderr == ""


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    """A directory with the benchmarks `broken` and `good`."""

    def add(name: str, run) -> None:
        module = ModuleType(f"bench.bench_{name}", f"About {name}")
        module.run, module.TINY, module.SIZE = run, {"SIZE": 1}, 1_000
        monkeypatch.setitem(sys.modules, module.__name__, module)
        (tmp_path / f"bench_{name}.py").touch()

    def good(report: Report) -> None:
        report.row("size", sys.modules["bench.bench_good"].SIZE, "rows")

    def broken(report: Report) -> None:
        raise RuntimeError("no longer works")

    add("good", good)
    add("broken", broken)
    monkeypatch.setattr(program, "HERE", tmp_path / "bench")
    (tmp_path / "bench").symlink_to(tmp_path)
    return tmp_path


def test_results_are_kept_only_when_asked_for(made):
    assert CliRunner().invoke(main, ["good"]).exit_code == 0
    assert not (made / "results").exists()
    assert CliRunner().invoke(main, ["good", "--keep"]).exit_code == 0
    assert Report.read(made / "results" / "good.json").rows[0].value == 1_000


def test_a_tiny_run_has_the_tiny_constants_and_is_never_kept(made):
    tiny = CliRunner().invoke(main, ["good", "--tiny"])
    assert "│ size     │     1 │" in tiny.output
    assert "the numbers mean nothing" in tiny.output
    refused = CliRunner().invoke(main, ["good", "--tiny", "--keep"])
    assert refused.exit_code == 2
    assert not (made / "results").exists()


def test_a_benchmark_that_fails_is_told_and_stops_no_other(made):
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 1
    assert "About good" in done.output
    assert "RuntimeError: no longer works" in done.output
    assert done.output.endswith("Error: failed: broken\n")


def test_a_benchmark_that_stays_on_one_core_leaves_all_cores_to_the_next(made, monkeypatch):
    cores = os.sched_getaffinity(0)
    module = sys.modules["bench.bench_good"]
    monkeypatch.setattr(module, "run", lambda _: os.sched_setaffinity(0, {min(cores)}))
    assert CliRunner().invoke(main, ["good"]).exit_code == 0
    assert os.sched_getaffinity(0) == cores


@pytest.fixture
def pieced(made) -> list[str]:
    """`good` in three pieces; which of them were run, in order."""
    ran: list[str] = []
    module = sys.modules["bench.bench_good"]

    def run(report: Report) -> None:
        for name in module.pieces():
            if report.wants(name):
                with report.piece(name):
                    ran.append(name)
                    report.row(f"{name} run {len(ran)}", len(ran), "runs")
                    if name == "third":
                        raise RuntimeError("stopped here")

    module.pieces, module.run = (lambda: ["first", "second", "third"]), run
    return ran


def kept_rows(made: Path) -> list[str]:
    return [row.name for row in Report.read(made / "results" / "good.json").rows]


def test_pieces_are_chosen_by_name_and_listed(made, pieced):
    assert CliRunner().invoke(main, ["good", "--list"]).output == (
        "good: first\ngood: second\ngood: third\n"
    )
    assert CliRunner().invoke(main, ["good", "--piece", "f*", "--piece", "s*"]).exit_code == 0
    assert pieced == ["first", "second"]


def test_a_run_that_is_stopped_has_kept_the_pieces_before(made, pieced):
    assert CliRunner().invoke(main, ["good", "--keep"]).exit_code == 1
    assert kept_rows(made) == ["first run 1", "second run 2"]


def test_a_piece_that_is_run_again_replaces_only_its_own_rows(made, pieced):
    CliRunner().invoke(main, ["good", "--keep"])
    assert CliRunner().invoke(main, ["good", "--keep", "--piece", "first"]).exit_code == 0
    assert kept_rows(made) == ["second run 2", "first run 4"]


def test_only_missing_pieces_are_run_and_none_after_the_time(made, pieced):
    CliRunner().invoke(main, ["good", "--keep", "--piece", "first"])
    CliRunner().invoke(main, ["good", "--keep", "--missing", "--piece", "[fs]*"])
    assert pieced == ["first", "second"]
    assert CliRunner().invoke(main, ["good", "--seconds", "-1"]).exit_code == 0
    assert pieced == ["first", "second"]
