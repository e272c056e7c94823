"""Texts of other programs, for people who have one line to read them in."""

from __future__ import annotations

import re
from typing import Final

_FRAME: Final = re.compile(r"\s*at [\w.$/<>]+\(.*\)|\s*\.\.\. \d+ more|Driver stacktrace:\s*")
"""Lines that say where in a Java program something happened."""


def shortened(text: str, most: int = 500) -> str:
    """A text of several lines as one of bounded length; its last line, which says why, stays.

    >>> shortened("it failed:\\n\\tat a.b.C(D.java:1)\\nTraceback, and so on\\nKeyError: x", 34)
    'it failed: Traceback … KeyError: x'
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if not _FRAME.fullmatch(line)]
    whole = " ".join(line for line in lines if line)
    if len(whole) <= most:
        return whole
    last = next(line for line in reversed(lines) if line)[: most // 2]
    return f"{whole[: most - len(last) - 3].rstrip(' ,')} … {last}"
