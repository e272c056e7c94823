"""Add up the reports of all test groups: `python tools/totals.py DIRECTORY`.

Prints how long each group took, the longest first, so that growth is seen; then one line in
pytest's words, and one for each group that was not run for lack of something. Fails if a test
failed, or if no test ran.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

NOT_RUN = "not run: "
"""How the reason of tests begins that need something which is not installed."""


class Totals(NamedTuple):
    """How many tests ended how."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def main() -> int:
    """Print the totals; return the exit status."""
    directory = Path(sys.argv[1])
    totals = add_up(directory)
    print(", ".join(f"{name} {seconds:.0f} s" for seconds, name in spans(directory)))
    print(totals)
    for line in not_run(directory):
        print(line)
    if totals.passed + totals.failed == 0:
        print("no tests ran", file=sys.stderr)
        return 1
    return 1 if totals.failed else 0


def add_up(directory: Path) -> Totals:
    """The totals over every report in a directory."""
    tests = failed = skipped = 0
    for report in sorted(directory.glob("*.xml")):
        for suite in ET.parse(report).iter("testsuite"):
            tests += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    return Totals(tests - failed - skipped, failed, skipped)


def not_run(directory: Path) -> list[str]:
    """A line for each group that could not be run here, with what to do about it."""
    found: dict[str, None] = {}
    for report in sorted(directory.glob("*.xml")):
        for skipped in ET.parse(report).iter("skipped"):
            reason = skipped.get("message", "")
            if reason.startswith(NOT_RUN):
                found[f"{report.stem} {reason}"] = None
    return list(found)


def spans(directory: Path) -> list[tuple[float, str]]:
    """How many seconds each group took, the longest first."""
    return sorted(
        (
            (
                sum(float(suite.get("time", 0)) for suite in ET.parse(path).iter("testsuite")),
                path.stem,
            )
            for path in directory.glob("*.xml")
        ),
        reverse=True,
    )


if __name__ == "__main__":
    sys.exit(main())
