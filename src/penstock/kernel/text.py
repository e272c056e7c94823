"""Text for people: output of other programs on one line, and log lines that do not repeat.

>>> seldom = Seldom(1_000)
>>> [seldom.take(now_ms) for now_ms in (0, 10, 999, 1_000, 1_001)]
[0, None, None, 2, None]
"""

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


class Seldom:
    """Lets the first event of each interval through and counts the rest."""

    __slots__ = ("_left_out", "_span_ms", "_taken_ms")

    def __init__(self, span_ms: int = 1_000) -> None:
        self._span_ms = span_ms
        self._taken_ms: int | None = None
        self._left_out = 0

    def take(self, now_ms: int) -> int | None:
        """How many events were suppressed before this one; None if this one is suppressed too."""
        if self._taken_ms is not None and now_ms - self._taken_ms < self._span_ms:
            self._left_out += 1
            return None
        self._taken_ms = now_ms
        left_out, self._left_out = self._left_out, 0
        return left_out


def and_others(left_out: int) -> str:
    """The suffix of a log line that stands for suppressed ones."""
    return f" (and {left_out} more since the last such line)" if left_out else ""
