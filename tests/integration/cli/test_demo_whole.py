"""`penstock demo --check`: everything on this machine, with a burst and two kills, proven."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LIMIT_S = 600
COMMAND = [sys.executable, "-m", "penstock", "demo", "--check"]


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
        [*COMMAND, "--seconds", "16"], env=os.environ | {"TMPDIR": str(tmp_path)},
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
    assert "the topic server is killed with SIGKILL" in said
    assert re.search(r"worker \d+ is killed", said), said
    assert "✗" not in said
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("penstock-demo")] == []
    assert processes_in(tmp_path) == []


def test_a_directory_with_files_is_refused(tmp_path):
    (tmp_path / "mine").write_text("x")
    done = subprocess.run(
        [*COMMAND, "--directory", str(tmp_path)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "expected an empty directory" in done.stderr
