"""`penstock demo --check`: everything on this machine, with a burst and two kills, proven."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.integration.spark.one import ENVIRON as SPARK

LIMIT_S = 600
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMAND = [sys.executable, "-m", "penstock", "demo", "--check"]
ENVIRON = os.environ | SPARK


def processes_in(directory: Path) -> list[str]:
    """Processes that were started there and still run."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found += [str(link)] if directory in [link.resolve(), *link.resolve().parents] else []
        except OSError:
            continue
    return found


def test_every_acknowledged_message_is_in_the_lake_once_and_every_table_equals_its_query(tmp_path):
    done = subprocess.run(
        [*COMMAND, "--seconds", "16"], env=ENVIRON | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"✓ [1-9][\d,]* messages acknowledged, [1-9][\d,]* readings", said), said
    assert re.search(
        r"✓ [1-9][\d,]* charges computed again from the tariffs as they were at \d+ seqs: 0 differ",
        said,
    ), said
    assert re.search(r"the flat tariff is dearer since seq \d+", said)
    for table in ("usage_per_hour", "charges_per_meter", "district_totals"):
        assert re.search(rf"✓ {table}: [1-9][\d,]* rows, 0 unlike its query", said), said
    assert re.search(r"in the fastest second [1-9][\d,]* were stored", said), said
    assert "the topic server is killed with SIGKILL" in said
    assert re.search(r"worker \d+ is killed", said), said
    assert "✗" not in said
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("penstock-demo")] == []
    assert processes_in(tmp_path) == []


class Visitor:
    """Somebody at a terminal of 80 by 24, before `penstock demo`."""

    def __init__(self, directory: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND[:-1], "--directory", str(directory)],
            env=ENVIRON | {"TERM": "xterm-256color"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def strike(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def until(self, pattern: str) -> None:
        """Watch until something is shown that was not before."""
        end_s = time.monotonic() + LIMIT_S
        begin = len(self.seen)
        while not re.search(pattern, ANSI.sub("", self.seen[begin:])):
            assert time.monotonic() < end_s, self.seen[-3_000:]
            assert self._look(end_s), f"it ended:\n{self.seen[-3_000:]}"

    def leave(self) -> tuple[int, str]:
        """Watch to the end; the exit code and all that was shown."""
        end_s = time.monotonic() + LIMIT_S
        while self._look(end_s):
            assert time.monotonic() < end_s
        os.close(self._ours)
        return self.process.wait(LIMIT_S), ANSI.sub("", self.seen)

    def _look(self, end_s: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, end_s - time.monotonic()))[0]:
            return True
        try:
            self.seen += os.read(self._ours, 1 << 16).decode(errors="replace")
        except OSError:  # the other end is closed
            return False
        return True


@pytest.mark.slow
def test_a_visitor_who_strikes_q_gets_the_verdict(tmp_path):
    visitor = Visitor(tmp_path)
    try:
        visitor.until(r"q end and prove")
        visitor.until(r"district_totals\s+5 rows")
        visitor.strike("s")
        visitor.until("listens again")
        visitor.strike("q")
        code, said = visitor.leave()
    finally:
        if visitor.process.poll() is None:
            visitor.process.send_signal(signal.SIGTERM)
            visitor.process.wait(LIMIT_S)
    assert code == 0, said[-3_000:]
    assert re.search(r"✓ [1-9][\d,]* messages acknowledged, [1-9][\d,]* readings", said)
    assert re.search(r"✓ district_totals: 5 rows, 0 unlike its query", said)
    assert "all is right" in said
    assert "the data is in" in said
    assert processes_in(tmp_path) == []


def test_a_directory_with_files_is_refused(tmp_path):
    (tmp_path / "mine").write_text("x")
    done = subprocess.run(
        [*COMMAND, "--directory", str(tmp_path)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is not empty; name an empty or a new directory" in done.stderr


def test_a_server_that_cannot_start_is_told_in_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    sys.exit('no server today')\n"
    )
    done = subprocess.run(
        COMMAND, env=ENVIRON | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("Error: server ended before it was ready (exit code 1)")
    assert line.endswith("no server today")
    assert "Traceback" not in done.stderr
