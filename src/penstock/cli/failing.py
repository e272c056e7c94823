"""The message of a failed command: one line, for every failure outside of Penstock's code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from penstock.kernel.errors import PenstockError, Unknown

_DRIVERS: Final = frozenset({"sqlite3", "psycopg", "psycopg_pool", "http", "urllib"})
"""Packages whose errors are not bugs of ours; matched by name, as few commands import them."""


class OutcomeOpen(click.ClickException):
    """A command that failed, and whose effect is not known."""

    exit_code = 3


def failure(error: BaseException, text: str) -> click.ClickException:
    """How a command ends with an error: exit code 3 if it may have taken effect, 1 if not."""
    return OutcomeOpen(text) if isinstance(error, Unknown) else click.ClickException(text)


def told(error: BaseException) -> str | None:
    """An error as one line, or None for an unexpected one, which needs a traceback."""
    if isinstance(error, PenstockError):
        text = error.message
    elif isinstance(error, OSError):
        text = _of_the_system(error)
    elif isinstance(error, UnicodeError):
        text = f"the text is not UTF-8: {error}"
    elif any(kind.__module__.startswith("pyspark.errors") for kind in type(error).__mro__):
        from penstock.spark.query_errors import one_line  # pyspark is already loaded here

        text = one_line(error)
    elif any(kind.__module__.partition(".")[0] in _DRIVERS for kind in type(error).__mro__):
        text = f"{type(error).__name__}: {error}"
    else:
        return None
    return " ".join(text.split())


def open_closed_streams() -> None:
    """Open the null device for standard streams that the parent process closed.

    Otherwise a file or socket that is opened later gets the descriptor of a standard stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nothing)


def leave_output() -> None:
    """Abandon standard output, so that Python does not report an error about it at exit."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def leave_broken_output() -> None:
    """Abandon standard output if writing to it fails, for example on a full disk."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        leave_output()


def _of_the_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return reason
    return f"{reason}: {os.fsdecode(error.filename)}"
