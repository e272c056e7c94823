"""Options that say where something is. A group's options may also follow its commands.

`penstock topic --url U list` and `penstock topic list --url U` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import click

from penstock.client import DEFAULT_URL
from penstock.kernel.errors import Rejected

F = TypeVar("F", bound=Callable[..., Any])


class Placing(NamedTuple):
    """One option: its flag, and its arguments for click."""

    flag: str
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")


def url(text: str) -> str:
    """A server's address as an option: a URL, or a host and a port."""
    from penstock.client import ClientSettings

    try:
        return ClientSettings(text).url
    except Rejected as error:
        raise click.BadParameter(error.message) from error


@contextmanager
def usage() -> Iterator[None]:
    """Report a refusal inside this context as wrong usage, not as a failure."""
    try:
        yield
    except Rejected as error:
        ctx = click.get_current_context(silent=True)
        raise click.UsageError(" ".join(error.message.split()), ctx) from error


def api_key_option(
    help_text: str = "The key, where the server has keys.", *, envvars: Sequence[str] = ()
) -> Callable[[F], F]:
    """`--api-key`, defined once."""

    def decorate(function: F) -> F:
        option = click.option(
            "--api-key", envvar=[*envvars, "PENSTOCK_API_KEY"], show_envvar=True, help=help_text
        )
        return option(_former(function))

    return decorate


def _former(function: F) -> F:
    """Refuse the former name of `--api-key`."""

    def refuse(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(
                "expected an API key as --api-key or PENSTOCK_API_KEY, found it as --token or "
                "PENSTOCK_TOKEN"
            )

    return click.option(
        "--token", envvar="PENSTOCK_TOKEN", hidden=True, expose_value=False, callback=refuse
    )(function)


def before(options: Sequence[Placing]) -> Callable[[F], F]:
    """Add the options with their defaults to a group, or to a command without one."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = click.option(option.flag, **option.facts)(function)
        has_key = any(option.flag == "--api-key" for option in options)
        return _former(function) if has_key else function

    return decorate


def behind(options: Sequence[Placing]) -> Callable[[F], F]:
    """Accept the group's options after one of its commands too; help lists them once."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            kind = option.facts.get("type")
            function = click.option(option.flag, type=kind, default=None, hidden=True)(function)
        has_key = any(option.flag == "--api-key" for option in options)
        return _former(function) if has_key else function

    return decorate


def placed(options: Sequence[Placing], given: dict[str, Any]) -> dict[str, Any]:
    """The options of the group or its command; those of the command are removed from `given`."""
    nearer = {option.name: given.pop(option.name, None) for option in options}
    named = {name: value for name, value in nearer.items() if value is not None}
    return {**click.get_current_context().obj, **named}


SERVER: Final = (
    Placing("--url", {
        "type": url,
        "default": DEFAULT_URL, "show_default": True, "envvar": "PENSTOCK_URL",
        "show_envvar": True, "help": "Where the server is.",
    }),
    Placing("--api-key", {
        "envvar": "PENSTOCK_API_KEY", "show_envvar": True,
        "help": "The key, where the server has keys.",
    }),
    Placing("--ca-file", {
        "envvar": "PENSTOCK_CA_FILE", "show_envvar": True,
        "type": click.Path(exists=True, dir_okay=False),
        "help": "Certificates to trust with https, in place of the system's.",
    }),
    Placing("--timeout-s", {
        "type": click.FloatRange(min=0, min_open=True), "default": 10.0, "show_default": True,
        "help": "How long a request may take, with all its tries.",
    }),
)  # fmt: skip
"""The options of commands that use a server, before or after the command's name."""

server_options = before(SERVER)


class Outage:
    """Reports on standard error when the server is away and when it is back, once per outage."""

    def __init__(self) -> None:
        self._is_away = False

    def __call__(self, trouble: str | None) -> None:
        if trouble is None and self._is_away:
            click.echo("the server is back", err=True)
        elif trouble is not None and not self._is_away:
            click.echo(f"{trouble}; trying again", err=True)
        self._is_away = trouble is not None
