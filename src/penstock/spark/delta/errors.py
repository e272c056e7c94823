"""Why a refresh cannot be differential now."""

from __future__ import annotations

from penstock.tables.core.history import ReasonCode
from penstock.tables.delta.cost import Choice


class MustBeFull(Exception):
    """This refresh has to run the whole query; the next one may be differential again.

    `choice` is there if it was a matter of cost.
    """

    def __init__(self, reason: ReasonCode, text: str = "", choice: Choice | None = None) -> None:
        super().__init__(text or reason.value)
        self.reason, self.text, self.choice = reason, text, choice
