"""Spark's errors about a query, in one line: what is wrong, where, and what was probably meant.

Spark's own texts go on with a plan and with a hundred lines of stack, and count places in the text
that it was given, which is not the text that a person wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.kernel.errors import PenstockError, Rejected
from penstock.spark.lake.views import Bound
from penstock.tables.core.failures import FailureKind
from penstock.tables.query.names import at_offset, did_you_mean, listed, nearest, not_there
from penstock.tables.worker.outcomes import kind_of

_CONDITION: Final = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")
_STATE: Final = re.compile(r"\s*SQLSTATE: [A-Z0-9]{5}")
_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")
_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)
_NUMBER: Final = re.compile(r"(?<=\w)#\d+L?(?=[\s,\])])")
"""What Spark numbers columns by in its plans."""
_TRACE: Final = "Traceback (most recent call last):"
_ADVICE: Final = (
    re.compile(r" If necessary set \S*spark\.sql\.ansi\.enabled\S* to \S+ to bypass this error\."),
    re.compile(r" Please, refer to '\S+' for a fix\."),
    re.compile(r" Verify the spelling and correctness of the schema and catalog\..*", re.DOTALL),
)  # fmt: skip
"""Advice that a table cannot follow, or that says nothing."""

_PIECE_LENGTH_MAX: Final = 60
_TEXT_LENGTH_MAX: Final = 500

Functions = Callable[[], Iterable[str]]
"""The functions that Spark has; asked for only when one was misspelled."""


class _OfSpark:
    """Spark's own condition and SQLSTATE: they decide whether a refresh is tried again."""

    condition: str | None = None
    sql_state: str | None = None

    def getCondition(self) -> str | None:  # noqa: N802 - the name that Spark's errors have
        return self.condition

    def getSqlState(self) -> str | None:  # noqa: N802
        return self.sql_state


class QueryRefused(_OfSpark, Rejected):
    """Spark refuses a query as it is: a name, a type, its syntax."""

    code = "query_refused"
    status = 400


class QueryFailed(_OfSpark, PenstockError):
    """Spark could not complete a query, because of the data or of an internal failure."""

    code = "query_failed"
    status = 500


def said(
    error: Exception, query: str, bound: Bound | None = None, functions: Functions | None = None
) -> PenstockError | None:
    """A Spark error as one of Penstock's, about the query as it was written.

    None if it is not Spark's.
    """
    if not _is_spark_s(error):
        return None
    kind = QueryRefused if kind_of(error) is FailureKind.PERMANENT else QueryFailed
    made = kind(_text(error, query, bound or Bound(query, {}), functions))
    made.condition = _asked(error, "getCondition")
    made.sql_state = _asked(error, "getSqlState")
    return made


def lost(log: str) -> QueryFailed:
    """The error for a Spark that was lost while it ran a query; `log` is its last output."""
    if "OutOfMemoryError" in log:
        return QueryFailed(
            "Spark ran out of memory while it ran the query: give it more with the option "
            "memory_mb, or let the query hold less at a time"
        )
    return QueryFailed("Spark went away while it ran the query; the next one starts it again")


def one_line(error: BaseException) -> str:
    """The text of an error of Spark without plan, stack and advice."""
    text = str(error)
    causes = [_cause(*found) for found in _CAUSE.findall(text)]
    text = text.partition("\n\nJVM stacktrace:")[0].partition("\n== SQL")[0]
    if _TRACE in text:  # of Python: what counts is its last line
        lines = [line for line in _STATE.sub("", text).splitlines() if line.strip()]
        text = lines[-1]
    text = _STATE.split(_CONDITION.sub("", text), maxsplit=1)[0]
    for advice in _ADVICE:
        text = advice.sub("", text)
    text = " ".join(_NUMBER.sub("", text).split())
    if not text or text.startswith("(java.lang."):
        text = " ".join(text.partition(") ")[2].split("This stopped SparkContext")[0].split()) or (
            type(error).__name__
        )
    if causes and causes[-1] not in text:
        text = f"{text.rstrip('.')}: {causes[-1]}"
    return text[:_TEXT_LENGTH_MAX]


def _is_spark_s(error: Exception) -> bool:
    return any(kind.__module__.startswith("pyspark.errors") for kind in type(error).__mro__)


def _text(error: Exception, query: str, bound: Bound, functions: Functions | None) -> str:
    condition = (_asked(error, "getCondition") or "").partition(".")[0]
    facts = _facts(error)
    place = _place(error, query, bound)
    if condition == "UNRESOLVED_COLUMN" and "objectName" in facts:
        known = _names(facts.get("proposal", ""))
        name = _plain(facts["objectName"])
        near = did_you_mean(nearest(name, known))
        return not_there(f"no column {name!r}{place}", near, _there(known))
    if condition == "UNRESOLVED_ROUTINE" and "routineName" in facts:
        name = _plain(facts["routineName"])
        near = nearest(name, functions()) if functions is not None else None
        return not_there(f"no function {name!r}{place}", did_you_mean(near))
    return f"{one_line(error).rstrip('.')}{place}"


def _there(known: list[str]) -> str | None:
    return f"there are {listed(known)}" if known else None


def _place(error: Exception, query: str, bound: Bound) -> str:
    """The position in the query as it was written, with the offending fragment."""
    for context in _contexts(error):
        # A piece that the optimizer has made up is nowhere in the query: -1 to -1.
        if "SQL" in str(context.contextType()) and context.stopIndex() >= context.startIndex() >= 0:
            start = bound.original(context.startIndex())
            end = max(start, bound.original(context.stopIndex()))
            piece = " ".join(query[start : end + 1].split())
            if len(piece) > _PIECE_LENGTH_MAX:
                piece = f"{piece[:_PIECE_LENGTH_MAX]}…"
            return f" ({at_offset(query, start)}: {piece})"
    found = _PLACE.search(str(error).partition("\n\nJVM stacktrace:")[0])
    if found is None:
        return ""
    lines = bound.query.split("\n")[: int(found[1]) - 1]
    start = bound.original(sum(len(line) + 1 for line in lines) + int(found[2]))
    return f" ({at_offset(query, start)})"


def _contexts(error: Exception) -> list[Any]:
    try:
        return list(getattr(error, "getQueryContext", list)() or ())
    except Exception:  # pyspark asks the server, which may be gone
        return []


def _facts(error: Exception) -> Mapping[str, str]:
    try:
        return getattr(error, "getMessageParameters", dict)() or {}
    except Exception:  # as above
        return {}


def _asked(error: Exception, method: str) -> str | None:
    found = getattr(error, method, lambda: None)()
    return None if found is None else str(found)


def _names(proposal: str) -> list[str]:
    """The names of "`a`.`b`, `c`", as people write them."""
    return [_plain(part) for part in proposal.split(", ") if part]


def _plain(quoted: str) -> str:
    return quoted.replace("`", "")


def _cause(kind: str, text: str) -> str:
    return " ".join(_STATE.split(_CONDITION.sub("", text))[0].split()) or kind.rpartition(".")[2]
