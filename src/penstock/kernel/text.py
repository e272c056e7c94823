"""Output of other programs, shortened to one line."""

from __future__ import annotations

import re
from typing import Final

_FRAME: Final = re.compile(r"\s*at [\w.$/<>]+\(.*\)|\s*\.\.\. \d+ more|Driver stacktrace:\s*")
"""Stack frame lines of a Java program."""


def shortened(text: str, most: int = 500) -> str:
    """Join lines into one of bounded length; the last line, which has the reason, is kept.

    >>> shortened("it failed:\\n\\tat a.b.C(D.java:1)\\nTraceback, and so on\\nKeyError: x", 34)
    'it failed: Traceback … KeyError: x'
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if not _FRAME.fullmatch(line)]
    whole = " ".join(line for line in lines if line)
    if len(whole) <= most:
        return whole
    last = next(line for line in reversed(lines) if line)[: most // 2]
    return f"{whole[: most - len(last) - 3].rstrip(' ,')} … {last}"
