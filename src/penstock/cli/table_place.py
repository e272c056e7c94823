"""What the commands about tables share: where the warehouse is, how errors are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.cli.output import json_flag
from penstock.cli.placing import Placing, before, behind, placed, usage
from penstock.cli.table_view import TableOutput
from penstock.config import load_spark
from penstock.kernel.errors import PenstockError, Rejected
from penstock.lake.database import check_address
from penstock.spark.options import named, plain_options
from penstock.tables.settings import SPARK
from penstock.tables.warehouse import Warehouse

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_CATALOG = "sqlite:warehouse.sqlite"


WAREHOUSE: Final = (
    Placing("--catalog", {
        "default": DEFAULT_CATALOG, "show_default": True, "envvar": "PENSTOCK_CATALOG",
        "show_envvar": True, "help": "sqlite:<path> or postgres:<connection words>.",
    }),
    Placing("--data-path", {
        "envvar": "PENSTOCK_DATA_PATH", "show_envvar": True,
        "help": "Where a new lake keeps its files. [default: beside the SQLite file]",
    }),
    Placing("--runner", {
        "default": SPARK, "show_default": True, "envvar": "PENSTOCK_RUNNER",
        "show_envvar": True, "help": "The engine, as package.module:function.",
    }),
    Placing("--spark", {
        "envvar": "PENSTOCK_SPARK", "show_envvar": True, "metavar": "sc://…|MASTER",
        "help": "A Spark Connect server that runs, or the master of a Spark to start, such as "
                "spark://HOST:PORT. [default: one is started on this machine]",
    }),
    Placing("--config", {
        "type": click.Path(dir_okay=False, path_type=Path),
        "help": "Settings file, for its table [spark]. [default: penstock.toml if it is here]",
    }),
    Placing("--api-key", {
        "envvar": "PENSTOCK_API_KEY", "show_envvar": True,
        "help": "The key for topics that tables read, where their server has keys.",
    }),
    Placing("--runner-options", {
        "default": "{}", "envvar": "PENSTOCK_RUNNER_OPTIONS", "show_envvar": True,
        "metavar": "JSON", "help": "Options for the engine.",
    }),
)  # fmt: skip
"""Where the warehouse is, and which engine runs its queries; before or behind a command's name."""

place_options = before(WAREHOUSE)


def open_warehouse(place: dict[str, Any], *, make: bool, **settings: Any) -> Warehouse:
    """Open the warehouse that the options name, or say that there is none."""
    with usage():
        options = _runner_options(place)
        check_address(place["catalog"])
    return Warehouse.open(
        place["catalog"], place["data_path"], runner=place["runner"], runner_options=options,
        make=make, topics_api_key=place["api_key"] or None, **settings,
    )  # fmt: skip


def _runner_options(place: dict[str, Any]) -> dict[str, Any]:
    """The engine's options; those of Spark from its settings as well."""
    try:
        options = json.loads(place["runner_options"])
    except ValueError as error:
        raise Rejected(f"expected JSON in --runner-options, found: {error}") from error
    if not isinstance(options, dict):
        raise Rejected(f"expected a JSON object in --runner-options, found {options!r}")
    if place["runner"] != SPARK:
        return options | named(place["spark"])
    settings = load_spark(file=place["config"], place=place["spark"])
    return plain_options(settings) | options


def told(function: F) -> F:
    """Make errors one line on standard error."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except PenstockError as error:
            raise click.ClickException(" ".join(error.message.split())) from error

    return run  # type: ignore[return-value]


def command(*, make: bool = False) -> Callable[[F], F]:
    """Give a command a warehouse and a way to print."""

    def decorate(function: F) -> F:
        @json_flag
        @behind(WAREHOUSE)
        @wraps(function)
        @told
        def run(*args: Any, as_json: bool, **options: Any) -> None:
            place = placed(WAREHOUSE, options)
            with open_warehouse(place, make=make) as warehouse:
                function(warehouse, TableOutput(as_json), *args, **options)

        return run  # type: ignore[return-value]

    return decorate
