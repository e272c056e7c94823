"""Whether a table can be refreshed from changes, and what to report if it cannot.

The compiler decides, nothing else: at creation if DIFFERENTIAL is requested, in the history of each
refresh under AUTO.

>>> columns = {"raw": ("day", "n")}
>>> differentiation("SELECT day, sum(n) AS n FROM raw GROUP BY day", columns).possible
True
>>> differentiation("SELECT day FROM raw LIMIT 3", columns).text
'LIMIT 3: without ORDER BY any rows may be the first'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.delta.compiler import Compiled, compile_query
from penstock.tables.delta.refusal import Cause
from penstock.tables.query.relations import Relations

_TIME_DEPENDENT = (Cause.VOLATILE.value, Cause.SAMPLED.value)


class Differentiation(NamedTuple):
    """Whether a query can be differentiated; if not, why: a code for programs and a text."""

    compiled: Compiled | None
    reason: ReasonCode = ReasonCode.AS_CONFIGURED
    text: str = ""

    @property
    def possible(self) -> bool:
        """Whether changes can be carried through the query."""
        return self.compiled is not None


def differentiation(query: str, columns: Mapping[str, Sequence[str]]) -> Differentiation:
    """Whether a query can be refreshed from changes alone; `columns` are those of its sources."""
    try:
        return Differentiation(compile_query(query, columns))
    except NotDifferentiable as error:
        reason = ReasonCode.NOT_DIFFERENTIABLE
        if error.detail["cause"] in _TIME_DEPENDENT:
            reason = ReasonCode.VOLATILE
        return Differentiation(None, reason, error.detail["why"])


def check_differential(tables: Iterable[TableDefinition], relations: Relations) -> None:
    """Reject tables configured as DIFFERENTIAL that cannot be."""
    for table in tables:
        if table.mode is not Mode.DIFFERENTIAL:
            continue
        try:
            compile_query(table.query, relations.read_by(table.query))
        except NotDifferentiable as error:
            detail = {**error.detail, "table": table.name}
            raise NotDifferentiable(error.message, **detail) from None
