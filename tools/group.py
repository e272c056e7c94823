"""Run one group of tests: `python tools/group.py NAME REPORT.xml PATH… -- PYTEST-ARGUMENT…`.

A group without tests does not fail here; `tools/totals.py` fails if no test ran at all.
"""

from __future__ import annotations

import sys

import pytest


def main() -> int:
    """Run the group; return the exit status."""
    name, report, *rest = sys.argv[1:]
    split = rest.index("--")
    paths, arguments = rest[:split], rest[split + 1 :]
    if not paths:
        print(f"tests-{name}: no tests yet")
        return 0
    print(f"tests-{name}: {' '.join(paths)}", flush=True)
    cache = f"cache_dir=.pytest_cache/{name}"
    status = pytest.main([f"--junit-xml={report}", "-o", cache, *arguments, *paths])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    sys.exit(main())
