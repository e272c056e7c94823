"""Hints for mistakes in a query: the place, and what was probably meant.

>>> at_offset("SELECT a,\\n  b FROM t", 12)
'line 2, column 3'
>>> nearest("amuont", ["id", "Amount"])
'Amount'
>>> listed(["a", "b", "c", "d"], most=3)
'a, b, c and 1 more'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

from sqlglot import exp

_ALIKE_MIN: Final = 0.5
_NEAREST_OF_MAX: Final = 5_000


def at_offset(query: str, offset: int) -> str:
    """A place in a text as line and column, both from 1."""
    before = query[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - (before.rfind(chr(10)) + 1) + 1}"


def at_parts(query: str, parts: Sequence[exp.Expr]) -> str:
    """The place of a name in a query, in parentheses; empty if the parser does not know."""
    start = parts[0].meta.get("start") if parts else None
    return "" if start is None else f" ({at_offset(query, int(start))})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to an unknown one, or None if none is similar enough."""
    wanted = name.lower()
    best, most = None, _ALIKE_MIN
    for candidate in list(dict.fromkeys(known))[:_NEAREST_OF_MAX]:
        alike = SequenceMatcher(None, wanted, candidate.lower()).ratio()
        if alike > most:
            best, most = candidate, alike
    return best


def listed(names: Iterable[str], *, most: int = 8) -> str:
    """The first names, and how many more there are."""
    every = list(dict.fromkeys(names))
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most:,} more"


def not_there(what: str, *hints: str | None) -> str:
    """A message about something missing, followed by hints."""
    given = [hint for hint in hints if hint]
    return f"{what}: {' '.join(given)}" if given else what


def did_you_mean(near: str | None) -> str | None:
    """The "did you mean" question, if there is a similar name."""
    return None if near is None else f"did you mean {near!r}?"
