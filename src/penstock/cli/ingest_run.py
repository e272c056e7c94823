"""`penstock ingest run` and `edge`: messages of devices into a topic, and on into the lake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.cli import placing
from penstock.cli.ingest_status import line_of, table_of
from penstock.cli.placing import api_key_option, usage
from penstock.config import (
    DEFAULT_CATALOG,
    GROWTHS,
    LOG_LEVELS,
    load_ingest,
    load_spark,
    load_tables,
)
from penstock.kernel.errors import PenstockError
from penstock.metering.tariffs import SPACE

F = TypeVar("F", bound=Callable[..., Any])


def lake_options(function: F) -> F:
    """Options for the lake, its Spark, and the tariffs in effect."""
    for option in (
        click.option(
            "--catalog", envvar="PENSTOCK_CATALOG", show_envvar=True,
            help=f"sqlite:<path> or postgres:<connection words>. [default: {DEFAULT_CATALOG}]",
        ),
        click.option(
            "--data-path", envvar="PENSTOCK_DATA_PATH", show_envvar=True,
            help="Where a new lake keeps its files. [default: beside the SQLite file]",
        ),
        click.option(
            "--spark", envvar="PENSTOCK_SPARK", show_envvar=True, metavar="sc://…|MASTER",
            help="A Spark Connect server that runs, or the master of a Spark to start, such as "
                 "spark://HOST:PORT. [default: one is started on this machine]",
        ),
        click.option(
            "--tariffs", default=SPACE, show_default=True, help="The space that has the tariffs."
        ),
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@lake_options
@click.option("--port", type=int, help="Port for devices; 0 takes any free one. [default: 4100]")
@click.option(
    "--url", type=placing.url, help="Where the topic server is. [default: http://127.0.0.1:4000]"
)
@api_key_option(envvars=["PENSTOCK_INGEST_API_KEY"])
@click.option("--live/--no-live", default=None, help="Show the stages. [default: on a terminal]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml if it is here]",
)
def run(
    catalog: str | None,
    data_path: str | None,
    spark: str | None,
    tariffs: str,
    live: bool | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Take meter messages of devices into the tables `readings` and `charges` until Ctrl-C.

    Prices are those of `penstock metering tariffs`. Edge and Spark stages share one planner: when
    the lake is slow, devices wait. SIGUSR1 holds the store stage, and the next one lets it go on.
    Settings of the edge stand in the table [ingest] of the file, those of Spark in [spark]; or in
    the environment as PENSTOCK_INGEST_… and PENSTOCK_SPARK_…
    """
    from penstock.app.ingest import IngestPlace, run_ingest
    from penstock.lake.database import check_address

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
            tables = load_tables(file=config, flags={"catalog": catalog, "data_path": data_path})
            options = load_spark(file=config, place=spark)
            check_address(tables.catalog)
        place = IngestPlace(tables.catalog, tables.data_path or None, options, tariffs)
        with _shown(sys.stderr.isatty() if live is None else live) as on_look:
            run_ingest(settings, place, say=partial(click.echo, err=True), on_look=on_look)
    except PenstockError as error:
        raise click.ClickException(" ".join(error.message.split())) from error


@contextmanager
def _shown(live: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Shows a status on the terminal; None if that is not wanted."""
    if not live:
        yield None
        return
    from rich.console import Console, Group
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as view:
        yield lambda found: view.update(Group(table_of(found), line_of(found)), refresh=True)


@click.command()
@click.option("--host", help="Address to listen on, or host:port. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port for devices; 0 takes any free one. [default: 4100]")
@click.option("--port-file", help="Write the bound host:port to this file, then that of status.")
@click.option("--status-port", type=int, help="Port for status and metrics. [default: 4101]")
@click.option(
    "--url", type=placing.url, help="Where the topic server is. [default: http://127.0.0.1:4000]"
)
@api_key_option(envvars=["PENSTOCK_INGEST_API_KEY"])
@click.option("--raw-topic", help="Topic of the messages. [default: ingest.raw]")
@click.option("--tokens-file", help="File of device tokens.")
@click.option(
    "--allow-insecure-no-tokens",
    is_flag=True,
    default=None,
    help="Listen beyond this machine without tokens.",
)
@click.option("--tls-cert", help="Certificate chain (PEM).")
@click.option("--tls-key", help="Private key (PEM) of the certificate.")
@click.option("--growth", type=click.Choice(GROWTHS), help="How windows grow. [default: aimd]")
@click.option("--log", type=click.Choice(LOG_LEVELS), help="What is logged. [default: info]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml if it is here]",
)
def edge(config: Path | None, **flags: Any) -> None:
    """Take messages of devices into a durable topic until Ctrl-C.

    Every setting can also stand in the file, in its table [ingest], or in the environment as
    PENSTOCK_INGEST_ and its name in capitals.
    """
    from penstock.app.ingest import run_edge_alone

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
        run_edge_alone(settings, say=partial(click.echo, err=True))
    except PenstockError as error:
        raise click.ClickException(error.message) from error
