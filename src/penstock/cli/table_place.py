"""Shared by the commands about tables: where the warehouse is, and its engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.app import tables as tables_app
from penstock.cli.options import (
    API_KEY,
    SharedOption,
    command_options,
    group_options,
    json_flag,
    lake_options,
    merged,
    usage,
)
from penstock.cli.table_view import TableOutput
from penstock.config import TablesSettings, load_spark, load_tables
from penstock.kernel.errors import Rejected
from penstock.lake.database import check_address
from penstock.spark.options import named, plain_options
from penstock.tables.warehouse import Warehouse

F = TypeVar("F", bound=Callable[..., Any])
WAREHOUSE: Final = (
    *lake_options(),
    SharedOption("--runner", {
        "default": tables_app.SPARK, "show_default": True, "envvar": "PENSTOCK_RUNNER",
        "show_envvar": True, "help": "Query engine, as package.module:function.",
    }),
    SharedOption("--runner-options", {
        "default": "{}", "envvar": "PENSTOCK_RUNNER_OPTIONS", "show_envvar": True,
        "metavar": "JSON", "help": "Options of the engine.",
    }),
    API_KEY.but(help="API key for topics that tables read, if their server requires one."),
    SharedOption("--config", {
        "type": click.Path(dir_okay=False, path_type=Path),
        "help": "Settings file, for [tables] and [spark]. [default: penstock.toml, if present]",
    }),
)  # fmt: skip
"""Where the warehouse is, and which engine runs its queries; before or after a command's name."""

place_options = group_options(WAREHOUSE)


def open_warehouse(place: dict[str, Any], *, make: bool, **flags: Any) -> Warehouse:
    """Open the warehouse that options, environment and file name, or fail if there is none.

    `flags` are a command's settings for the table [tables].
    """
    with usage():
        tables = tables_settings(place, **flags)
        options = _runner_options(place)
        check_address(tables.catalog)
        if tables.pool:
            check_address(tables.pool)
    return tables_app.open_warehouse(tables, place["runner"], options, make=make)


def tables_settings(place: dict[str, Any], **flags: Any) -> TablesSettings:
    """The settings of the table [tables], with what options and a command's flags say."""
    near = {name: place[name] for name in ("catalog", "data_path", "api_key")}
    return load_tables(file=place["config"], flags=near | flags)


def _runner_options(place: dict[str, Any]) -> dict[str, Any]:
    """The engine's options; for Spark, from its settings as well."""
    try:
        options = json.loads(place["runner_options"])
    except ValueError as error:
        raise Rejected(f"--runner-options is not JSON: {error}") from error
    if not isinstance(options, dict):
        raise Rejected(f"--runner-options must be a JSON object, not {options!r}")
    if place["runner"] != tables_app.SPARK:
        return options | named(place["spark"])
    settings = load_spark(file=place["config"], place=place["spark"])
    return plain_options(settings) | options


def command(*, make: bool = False) -> Callable[[F], F]:
    """Pass a warehouse and an output to a command."""

    def decorate(function: F) -> F:
        @json_flag
        @command_options(WAREHOUSE)
        @wraps(function)
        def run(*args: Any, as_json: bool, **options: Any) -> None:
            place = merged(WAREHOUSE, options)
            with open_warehouse(place, make=make) as warehouse:
                function(warehouse, TableOutput(as_json), *args, **options)

        return run  # type: ignore[return-value]

    return decorate


_STARTS: Final = "penstock.spark.jvm"


class _Said(logging.Handler):
    """Shows the output of Spark's start, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


@contextmanager
def spark_said() -> Iterator[None]:
    """Say that Spark is starting, during this context: it takes seconds."""
    logger = logging.getLogger(_STARTS)
    level, handler = logger.level, _Said(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
