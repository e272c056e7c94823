"""Options that several commands have, each declared once.

A group's options may also follow its commands: `penstock topic --url U list` and `penstock topic
list --url U` are the same. Flags for settings are made from the settings themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from penstock.client import DEFAULT_URL, ClientSettings
from penstock.kernel.errors import Rejected

if TYPE_CHECKING:
    from penstock.config import Described

F = TypeVar("F", bound=Callable[..., Any])

json_flag = click.option(
    "--json", "as_json", is_flag=True, help="Print lines of JSON, even on a terminal."
)
config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml, if present]",
)


class SharedOption(NamedTuple):
    """One option: its flag, and its arguments for click."""

    flag: str
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")

    def but(self, **facts: Any) -> SharedOption:
        """The same option with some arguments changed."""
        return SharedOption(self.flag, self.facts | facts)


def group_options(options: Sequence[SharedOption]) -> Callable[[F], F]:
    """Add the options with their defaults to a group, or to a command without one."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = click.option(option.flag, **option.facts)(function)
        return _former(function) if _has_key(options) else function

    return decorate


def command_options(options: Sequence[SharedOption]) -> Callable[[F], F]:
    """Accept the group's options after one of its commands too; help lists them once."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            kind = option.facts.get("type")
            function = click.option(option.flag, type=kind, default=None, hidden=True)(function)
        return _former(function) if _has_key(options) else function

    return decorate


def merged(options: Sequence[SharedOption], given: dict[str, Any]) -> dict[str, Any]:
    """The options of the group or its command; those of the command are removed from `given`."""
    nearer = {option.name: given.pop(option.name, None) for option in options}
    named = {name: value for name, value in nearer.items() if value is not None}
    return {**click.get_current_context().obj, **named}


def _has_key(options: Sequence[SharedOption]) -> bool:
    return any(option.flag == "--api-key" for option in options)


def _former(function: F) -> F:
    """Refuse the former name of `--api-key`."""

    def refuse(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(
                "--token and PENSTOCK_TOKEN are now --api-key and PENSTOCK_API_KEY; use those"
            )

    return click.option(
        "--token", envvar="PENSTOCK_TOKEN", hidden=True, expose_value=False, callback=refuse
    )(function)


# Servers


def url(text: str) -> str:
    """A server's address as an option: a URL, or a host and a port."""
    try:
        return ClientSettings(text).url
    except Rejected as error:
        raise click.BadParameter(error.message) from error


URL: Final = SharedOption("--url", {
    "type": url, "default": DEFAULT_URL, "show_default": True, "envvar": "PENSTOCK_URL",
    "show_envvar": True,
    "help": "URL of the server; separate several nodes of a cluster by commas.",
})  # fmt: skip
API_KEY: Final = SharedOption("--api-key", {
    "envvar": ["PENSTOCK_API_KEY"], "show_envvar": True,
    "help": "API key, if the server requires one.",
})  # fmt: skip
CA_FILE: Final = SharedOption("--ca-file", {
    "envvar": "PENSTOCK_CA_FILE", "show_envvar": True,
    "type": click.Path(exists=True, dir_okay=False),
    "help": "Certificates to trust for https instead of the system's.",
})  # fmt: skip
TIMEOUT: Final = SharedOption("--timeout-s", {
    "type": click.FloatRange(min=0, min_open=True), "default": 10.0, "show_default": True,
    "help": "Time limit of a request, including retries.",
})  # fmt: skip
SERVER: Final = (URL, API_KEY, CA_FILE, TIMEOUT)
"""The options of commands that use a server, before or after the command's name."""

server_options = group_options(SERVER)


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


# Lakes


def lake_options() -> tuple[SharedOption, ...]:
    """Where the lake is, and the Spark that works on it; the settings they need are slow."""
    from penstock.config import DEFAULT_CATALOG

    return (
        SharedOption("--catalog", {
            "envvar": "PENSTOCK_CATALOG", "show_envvar": True,
            "help": "Catalog: sqlite:<path> or postgres:<connection words>. "
                    f"[default: {DEFAULT_CATALOG}]",
        }),
        SharedOption("--data-path", {
            "envvar": "PENSTOCK_DATA_PATH", "show_envvar": True,
            "help": "Directory for the files of a new lake. [default: beside the SQLite file]",
        }),
        SharedOption("--spark", {
            "envvar": "PENSTOCK_SPARK", "show_envvar": True, "metavar": "sc://…|MASTER",
            "help": "A running Spark Connect server, or the master of a Spark to start, such as "
                    "spark://HOST:PORT. [default: start one on this machine]",
        }),
    )  # fmt: skip


# Settings


def setting_flags(table: str, *names: str, prefix: str = "") -> Callable[[F], F]:
    """A flag for each of these settings of a table, with its type, its text and its default.

    `prefix` is that of the flags, where the names alone could be another table's.
    """
    from penstock.config import described

    found = described(table)

    def decorate(function: F) -> F:
        for name in reversed(names):
            function = _flag(found[name], prefix)(function)
        return function

    return decorate


def _flag(setting: Described, prefix: str) -> Callable[[F], F]:
    flag = f"--{prefix}{setting.name.replace('_', '-')}"
    default = f" [default: {setting.default}]" if setting.default else ""
    text = f"{setting.doc}{default}"
    if setting.kind == "bool":
        return click.option(flag, is_flag=True, default=None, help=setting.doc)
    if setting.kind.startswith("tuple"):  # a flag of its own for each: `--allowed-host a`
        one = flag.removesuffix("s")
        return click.option(one, setting.name, multiple=True, help=f"{text} May be repeated.")
    kind: Any = int if setting.kind == "int" and not setting.name.endswith("_bytes") else None
    return click.option(
        flag, type=click.Choice(setting.choices) if setting.choices else kind, help=text
    )


@contextmanager
def usage() -> Iterator[None]:
    """Report a refusal inside this context as wrong usage, not as a failure."""
    try:
        yield
    except Rejected as error:
        ctx = click.get_current_context(silent=True)
        raise click.UsageError(" ".join(error.message.split()), ctx) from error
