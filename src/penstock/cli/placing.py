"""Options of a group that say where something is: they may also stand behind its commands.

`penstock topic --url U list` and `penstock topic list --url U` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Placing(NamedTuple):
    """One option: its flag, and what click is told of it."""

    flag: str
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")


def before(options: Sequence[Placing]) -> Callable[[F], F]:
    """Give a group, or a command without one, the options with their defaults."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = click.option(option.flag, **option.facts)(function)
        return function

    return decorate


def behind(options: Sequence[Placing]) -> Callable[[F], F]:
    """Take the options of the group behind one of its commands too; help names them once."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            kind = option.facts.get("type")
            function = click.option(option.flag, type=kind, default=None, hidden=True)(function)
        return function

    return decorate


def placed(options: Sequence[Placing], given: dict[str, Any]) -> dict[str, Any]:
    """What the group was told, or its command; those of the command are taken out of `given`."""
    nearer = {option.name: given.pop(option.name, None) for option in options}
    named = {name: value for name, value in nearer.items() if value is not None}
    return {**click.get_current_context().obj, **named}
