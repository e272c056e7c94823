"""Where the server is that a command talks to, and what is said while it is away."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import placing
from penstock.cli.placing import Placing, before
from penstock.client import DEFAULT_URL

SERVER: Final = (
    Placing("--url", {
        "type": placing.url,
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
"""What the commands that talk to a server can be told, before or behind their names."""

server_options = before(SERVER)


class Outage:
    """Says on standard error that the server is away and that it is back, once for each outage."""

    def __init__(self) -> None:
        self._is_away = False

    def __call__(self, trouble: str | None) -> None:
        if trouble is None and self._is_away:
            click.echo("the server is back", err=True)
        elif trouble is not None and not self._is_away:
            click.echo(f"{trouble}; trying again", err=True)
        self._is_away = trouble is not None
