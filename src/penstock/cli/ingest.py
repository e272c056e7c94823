"""`penstock ingest`: messages of devices into a topic and on into the lake, and their status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from penstock.cli.options import (
    API_KEY,
    URL,
    SharedOption,
    config_option,
    group_options,
    json_flag,
    lake_options,
    server_options,
    setting_flags,
    usage,
)
from penstock.cli.output import Output
from penstock.client import ClientSettings
from penstock.config import (
    INGEST_TABLE,
    IngestSettings,
    TablesSettings,
    load_ingest,
    load_spark,
    load_tables,
)
from penstock.kernel.units import format_bytes, format_ms
from penstock.metering.tariffs import SPACE

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.spark.options import SparkOptions

F = TypeVar("F", bound=Callable[..., Any])
STATUS_URL: Final = "http://127.0.0.1:4101"

topics_options = group_options(
    (
        URL.but(
            default=None,
            show_default=False,
            envvar=None,
            help="URL of the topic server. [default: http://127.0.0.1:4000]",
        ),
        API_KEY.but(envvar=["PENSTOCK_INGEST_API_KEY", "PENSTOCK_API_KEY"]),
    )
)


def _spark_conf(_: click.Context, option: click.Parameter, found: Sequence[str]) -> dict[str, str]:
    """Settings of Spark by their names."""
    pairs = [text.partition("=") for text in found]
    for key, equals, _value in pairs:
        if not key or not equals:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", param=option)
    return {key: value for key, _, value in pairs}


SPARK_FLAGS: Final = (
    SharedOption("--spark-cores", {
        "type": click.IntRange(1), "metavar": "N",
        "help": "Cores for a Spark started here. [default: all]",
    }),
    SharedOption("--spark-memory-mb", {
        "type": click.IntRange(512), "metavar": "MB",
        "help": "Heap of a Spark started here. [default: 2048]",
    }),
    SharedOption("--spark-conf", {
        "multiple": True, "metavar": "KEY=VALUE", "callback": _spark_conf,
        "help": "One of Spark's own settings. May be repeated.",
    }),
)  # fmt: skip


def pipeline_options(function: F) -> F:
    """Options for the lake, its Spark, the topic server and the tariffs in effect."""
    function = group_options(SPARK_FLAGS)(function)
    tariffs = click.option(
        "--tariffs", default=SPACE, show_default=True, help="The space that holds the tariffs."
    )
    return group_options(lake_options())(tariffs(topics_options(config_option(function))))


class PipelineSettings(NamedTuple):
    """The settings that a command of the pipeline has: edge, lake and Spark."""

    ingest: IngestSettings
    tables: TablesSettings
    spark: SparkOptions


def pipeline_settings(
    config: Path | None, catalog: str | None, data_path: str | None, spark: str | None,
    flags: dict[str, Any],
) -> PipelineSettings:  # fmt: skip
    """The settings from options, environment and file; a wrong one is wrong usage."""
    from penstock.lake.database import check_address

    with usage():
        ours = {name: flags.pop(f"spark_{name}") for name in ("cores", "memory_mb", "conf")}
        ingest = load_ingest(file=config, flags=flags)
        tables = load_tables(file=config, flags={"catalog": catalog, "data_path": data_path})
        options = load_spark(file=config, place=spark, flags=ours)
        check_address(tables.catalog)
    return PipelineSettings(ingest, tables, options)


@click.command()
@pipeline_options
@setting_flags(INGEST_TABLE, "port")
@click.option("--live/--no-live", default=None, help="Show the stages. [default: on a terminal]")
def run(
    catalog: str | None,
    data_path: str | None,
    spark: str | None,
    tariffs: str,
    live: bool | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Store meter messages from devices in the tables `readings` and `charges` until Ctrl-C.

    Prices come from `penstock metering tariffs`. The edge and the Spark stages share one planner:
    when the lake is slow, devices wait. SIGUSR1 pauses the store stage, a second one resumes it.
    Configure the edge in the table [ingest] of the settings file and Spark in [spark], or with
    environment variables PENSTOCK_INGEST_… and PENSTOCK_SPARK_…
    """
    from penstock.app.ingest import IngestPlace, run_ingest

    found = pipeline_settings(config, catalog, data_path, spark, flags)
    tables = found.tables
    place = IngestPlace(
        tables.catalog, tables.data_path or None, found.spark, tariffs, tables.snapshot_retention_ms
    )
    with _shown(sys.stderr.isatty() if live is None else live) as on_look:
        run_ingest(found.ingest, place, say=partial(click.echo, err=True), on_look=on_look)


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
@topics_options
@setting_flags(
    INGEST_TABLE, "host", "port", "port_file", "node", "status_port", "raw_topic", "tokens_file",
    "allow_insecure_no_tokens", "tls_cert", "tls_key", "growth", "log",
)  # fmt: skip
@config_option
def edge(config: Path | None, **flags: Any) -> None:
    """Store messages from devices in a durable topic until Ctrl-C.

    Every setting can also be given in the settings file, in the table [ingest], or as an
    environment variable: PENSTOCK_INGEST_ and its name in capitals.
    """
    from penstock.app.ingest import run_edge_alone

    with usage():
        settings = load_ingest(file=config, flags=flags)
    run_edge_alone(settings, say=partial(click.echo, err=True))


@click.command()
@group_options([URL.but(default=STATUS_URL, envvar=None, help="URL of the edge's status port.")])
@json_flag
def status(url: str, as_json: bool) -> None:
    """Show each stage's window, occupancy, rate and latency, and which one is the bottleneck."""
    found = _fetch(url)
    output = Output(as_json)
    if output.plain:
        output.json(found)
    else:
        output.console.print(table_of(found))
        output.console.print(line_of(found))


@click.command()
@click.argument("stage")
@click.option("--part", help="The pipeline's part, if several run: see `penstock status`.")
@server_options
@json_flag
def hold(stage: str, part: str | None, as_json: bool, **place: Any) -> None:
    """Pause a stage of the running pipeline, such as store."""
    from penstock.client import Client

    with Client(ClientSettings(**place)) as client:
        done = client.hold_stage(stage, part)
    Output(as_json).say(f"{done.part}: {done.text}", part=done.part, stage=stage, held=done.held)


@click.command()
@click.argument("stage")
@click.option("--part", help="The pipeline's part, if several run: see `penstock status`.")
@server_options
@json_flag
def go(stage: str, part: str | None, as_json: bool, **place: Any) -> None:
    """Resume a paused stage of the running pipeline."""
    from penstock.client import Client

    with Client(ClientSettings(**place)) as client:
        done = client.release_stage(stage, part)
    Output(as_json).say(f"{done.part}: {done.text}", part=done.part, stage=stage, held=done.held)


def _fetch(url: str) -> dict[str, Any]:
    from penstock.app.ingest import fetch_status
    from penstock.protocol.errors import CallError

    try:
        return fetch_status(url)
    except CallError as error:
        raise click.ClickException(f"no status of an edge at {url}: {error}") from error


def table_of(found: dict[str, Any]) -> Table:
    """The stages of a status; the bottleneck is highlighted."""
    from rich.table import Table

    table = Table()
    for heading in ("stage", "window", "occupancy", "items/s", "p50", "p99", "why"):
        table.add_column(heading, justify="left" if heading in ("stage", "why") else "right")
    for stage in found["stages"]:
        is_bottleneck = stage["name"] == found["bottleneck"]
        table.add_row(
            f"[bold red]{stage['name']}[/]" if is_bottleneck else stage["name"],
            f"{stage['window']:,}",
            f"{stage['occupancy']:.0%}",
            f"{stage['rate_per_s']:,.0f}",
            _span(stage["p50_ns"]),
            _span(stage["p99_ns"]),
            stage["note"].partition(": ")[2],
        )
    return table


def _span(span_ns: int | None) -> str:
    """A latency, or nothing if there was none."""
    return "–" if span_ns is None else format_ms(span_ns / 1e6)


def line_of(found: dict[str, Any]) -> str:
    """The rest of a status in one line."""
    edge, held = found["edge"], found["bottleneck"]
    facts = [
        f"{edge['connections']:,} connections",
        f"{edge['messages_acked_total']:,} messages acknowledged",
        f"{format_bytes(edge['buffered_bytes'])} not durable yet",
    ]
    pipeline = found.get("pipeline")
    if pipeline is not None:
        facts.append(f"{pipeline['behind']:,} messages not in the lake yet")
        if pipeline["tariffs"]:
            facts.append("priced with {space} at seq {seq:,}".format(**pipeline["tariffs"]))
        if pipeline["trouble"]:
            facts.append(f"trouble: {pipeline['trouble']}")
        if pipeline.get("upkeep"):
            facts.append(f"trouble: {pipeline['upkeep']}")
    facts.append(f"bottleneck: {held}" if held else "all stages keep up")
    return " · ".join(facts)
