from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def totals(directory: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "totals.py", directory],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def report(directory: Path, name: str, **counts: int) -> None:
    numbers = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0, "time": 1.4} | counts
    attributes = " ".join(f'{key}="{value}"' for key, value in numbers.items())
    text = f"<testsuites><testsuite {attributes}/></testsuites>"
    (directory / f"{name}.xml").write_text(text)


def test_groups_are_added_up(tmp_path):
    report(tmp_path, "unit", tests=10, skipped=1)
    report(tmp_path, "property", tests=5, time=60)
    assert totals(tmp_path) == (0, ["property 60 s, unit 1 s", "14 passed, 0 failed, 1 skipped"])


def test_a_failure_or_an_error_fails_the_whole(tmp_path):
    report(tmp_path, "unit", tests=10, failures=1, errors=1)
    assert totals(tmp_path) == (1, ["unit 1 s", "8 passed, 2 failed, 0 skipped"])


def test_no_tests_at_all_is_a_failure(tmp_path):
    report(tmp_path, "unit")
    assert totals(tmp_path) == (1, ["unit 1 s", "0 passed, 0 failed, 0 skipped"])


def test_a_group_that_could_not_be_run_says_what_to_install(tmp_path):
    report(tmp_path, "unit", tests=10)
    case = '<testcase><skipped message="not run: no Chromium: install it"/></testcase>'
    other = '<testcase><skipped message="needs two cores"/></testcase>'
    suite = f'<testsuite tests="3" skipped="3" time="0">{case}{case}{other}</testsuite>'
    (tmp_path / "e2e.xml").write_text(f"<testsuites>{suite}</testsuites>")
    status, lines = totals(tmp_path)
    assert status == 0
    assert lines[1:] == ["10 passed, 0 failed, 3 skipped", "e2e not run: no Chromium: install it"]
