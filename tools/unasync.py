"""Make the blocking client from the asynchronous one: `python tools/unasync.py [--check]`.

Every module of `penstock/client/aio` becomes the module of the same name in `client/blocking`:
without `async` and `await`, and with the names below replaced. What really differs between the two,
sockets and threads, is written by hand, with the same names, in `client/transports`. With --check
nothing is written; the exit status says whether the files are in step.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src/penstock/client/aio"
TARGET: Final = ROOT / "src/penstock/client/blocking"

HEADER: Final = (
    "# Generated from ../aio/{name} by tools/unasync.py: edit that, then `make generate`.\n"
)

SUBSTITUTIONS: Final[tuple[tuple[str, str], ...]] = (
    # The colour of a function
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"    def __await__\(.*\n.*\n\n", ""),
    # Names
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclose\b", "close"),
    (r"\bAsync([A-Z]\w+)", r"\1"),
    (r"\bpenstock\.client\.aio\b", "penstock.client.blocking"),
    (r"\bpenstock\.client\.transports\.aio\b", "penstock.client.transports.blocking"),
)
"""Patterns, applied in this order to the text of a module."""

WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("from asyncio", "for threads"),
    ("A task of its own", "A thread of its own"),
    ("Another task may", "Another thread may"),
    ("Several tasks may take jobs", "Several threads may take jobs"),
    ("any task may close", "any thread may close"),
    (
        "Any task of its loop may send.",
        "Any thread may send.\n\n    It belongs to its process: after a fork, make another.",
    ),
    (
        "It belongs to the event loop that uses it.",
        "Any thread may use it, also inside a running loop, and a forked process may keep it.",
    ),
    (
        "Handlers and callbacks run in the loop, one at a time.",
        """\
Handlers and callbacks run in the runtime's own thread, one at a time, and so need no
    locks; they must not call the runtime. Any other thread may use it. It belongs to its
    process: after a fork, make another.""",
    ),
    ("The client for asyncio.", "The client for threads and scripts: no event loop is needed."),
)
"""What docstrings say of tasks, and what they say of threads instead."""


def main() -> int:
    """Write what is not in step, or name it; return the exit status."""
    check = "--check" in sys.argv[1:]
    wanted = {TARGET / path.name: generated(path) for path in sorted(SOURCE.glob("*.py"))}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    strangers = [path for path in sorted(TARGET.glob("*.py")) if path not in wanted]
    for path in (*stale, *strangers):
        print(f"{path.relative_to(ROOT)}: {'not in step' if check else 'rewritten'}")
        if not check:
            path.unlink(missing_ok=True) if path in strangers else path.write_text(wanted[path])
    return 1 if check and (stale or strangers) else 0


def generated(source: Path) -> str:
    """The blocking module for an asynchronous one, formatted as the rest of the tree."""
    text = HEADER.format(name=source.name) + unasynced(source.read_text())
    # UP028, C416: loops and comprehensions that only the asynchronous colour needs.
    text = _ruff(
        text, "check", "--fix-only", "--unsafe-fixes", "--select", "I,F401,UP028,C416", "-q"
    )
    return _ruff(text, "format", "-q")


def unasynced(text: str) -> str:
    """The text with every substitution made."""
    for pattern, replacement in SUBSTITUTIONS:
        text = re.sub(pattern, replacement, text)
    for said, instead in WORDS:
        text = text.replace(said, instead)
    return text


def _ruff(text: str, *command: str) -> str:
    name = str(TARGET / "module.py")  # ruff looks for its settings from there
    found = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return found.stdout


if __name__ == "__main__":
    sys.exit(main())
