"""Refusals: why a query cannot be brought up to date from changes alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlglot import exp

from penstock.protocol.errors import NotDifferentiable

_PIECE_MAX: Final = 60


class Cause(StrEnum):
    """Why a query, or a piece of it, cannot be differentiated."""

    RECURSIVE = "recursive"
    VOLATILE = "volatile"
    ORDER_DEPENDENT = "order_dependent"
    WHOLE_WINDOW = "whole_window"
    SAMPLED = "sampled"
    CORRELATED = "correlated"
    UNRESOLVED = "unresolved"
    UNKNOWN_COLUMNS = "unknown_columns"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"


def refusal(cause: Cause, piece: exp.Expr | str, why: str) -> NotDifferentiable:
    """The error that names a piece of a query and says why it stands in the way."""
    named = shown(piece)
    joint = " " if cause is Cause.VOLATILE else ": "
    said = f"{named}{joint}{why}"
    return NotDifferentiable(
        f"{said}; use mode AUTO or FULL", cause=cause.value, piece=named, why=said
    )


def shown(piece: exp.Expr | str) -> str:
    """A piece of a query in one line, shortened."""
    text = piece if isinstance(piece, str) else piece.sql(dialect="spark", comments=False)
    text = " ".join(text.replace("`", "").split())
    return text if len(text) <= _PIECE_MAX else f"{text[: _PIECE_MAX - 1]}…"
