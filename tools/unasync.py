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
    # Names
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclose\b", "close"),
    (r"\bAsync([A-Z]\w+)", r"\1"),
    (r"\bpenstock\.client\.aio\b", "penstock.client.blocking"),
    (r"\bpenstock\.client\.transports\.aio\b", "penstock.client.transports.blocking"),
    # Words
    (r"\bfor asyncio\b", "for threads"),
    (r"\bfrom asyncio\b", "for threads"),
    (r"\bA task of its own\b", "A thread of its own"),
    (r"\bAnother task may\b", "Another thread may"),
    (
        r"\bSeveral tasks may take jobs from it, and any task\b",
        "Several threads may take jobs from it, and any thread",
    ),
    (
        r"\bAny task of its loop may send\.",
        "Any thread may send.\n\n    It belongs to its process: after a fork, make another.",
    ),
    (
        r"\bIt belongs to the event loop that uses it\.",
        "Any thread may use it, also inside a running loop, and a forked process may keep it.",
    ),
)
"""Applied in this order to the text of a module."""


def main() -> int:
    """Write what is not in step, or name it; return the exit status."""
    check = "--check" in sys.argv[1:]
    wanted = {TARGET / path.name: generated(path) for path in sorted(SOURCE.glob("*.py"))}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    strangers = [path for path in sorted(TARGET.glob("*.py")) if path not in wanted]
    for path in (*stale, *strangers):
        print(f"{path.relative_to(ROOT)}: {'not in step' if check else 'written anew'}")
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
