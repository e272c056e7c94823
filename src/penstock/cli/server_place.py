"""Where the server is that a command talks to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.client import DEFAULT_URL

F = TypeVar("F", bound=Callable[..., Any])


def server_options(function: F) -> F:
    """The options `--url`, `--token` and `--timeout-s`."""
    for option in (
        click.option(
            "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=10.0,
            show_default=True, help="How long a request may take, with all its tries.",
        ),
        click.option(
            "--token", envvar="PENSTOCK_TOKEN", show_envvar=True,
            help="The key, where the server has keys.",
        ),
        click.option(
            "--url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_URL",
            show_envvar=True, help="Where the server is.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function
