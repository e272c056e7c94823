"""`penstock metering load` and `replay`: a simulated fleet of meters, and letters tried again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.ingest import pipeline_options, pipeline_settings
from penstock.cli.options import json_flag, setting_flags
from penstock.cli.output import Output
from penstock.config import INGEST_TABLE
from penstock.kernel.errors import Unavailable
from penstock.metering.shapes import SHAPES

if TYPE_CHECKING:
    from penstock.metering.load import LoadGenerator, LoadState

LOOK_S: Final = 0.1


@click.command()
@click.argument("address", metavar="HOST:PORT", default="127.0.0.1:4100")
@click.option("--shape", type=click.Choice(SHAPES), default="square", show_default=True)
@click.option(
    "--low", default=20.0, show_default=True, help="Lowest number of messages per second."
)
@click.option(
    "--high", default=200.0, show_default=True, help="Highest number of messages per second."
)
@click.option(
    "--period-s", default=10.0, show_default=True, help="Length of one wave, or of a day."
)
@click.option("--seconds", default=10.0, show_default=True, help="How long to send load.")
@click.option(
    "--devices",
    default=10,
    show_default=True,
    help="Number of devices, each with its own connection.",
)
@click.option("--meters", default=50, show_default=True, help="Readings per message.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Seed of the readings; the same seed sends the same ones.",
)
@click.option("--token", default="", help="The token of the devices.")
@click.option("--tls", is_flag=True, help="Connect with TLS.")
@click.option("--give-up-s", type=click.FloatRange(min=0), default=30.0, show_default=True,
              help="How long the edge may be unreachable.")  # fmt: skip
@json_flag
def load(
    address: str,
    shape: str,
    low: float,
    high: float,
    period_s: float,
    seconds: float,
    devices: int,
    meters: int,
    seed: int,
    token: str,
    tls: bool,
    give_up_s: float,
    as_json: bool,
) -> None:
    """Send the load of a meter fleet to an edge, and wait until everything is acknowledged.

    The load has a shape: a square wave, a sawtooth, random, a ramp, steady, or the curve of a day.
    """
    import ssl

    import uvloop

    from penstock.metering.fleet import Fleet
    from penstock.metering.load import LoadGenerator, Target
    from penstock.metering.shapes import named_shape

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise click.UsageError(f"{address!r} is not HOST:PORT")

    async def run() -> LoadState:
        target = Target(
            host.strip("[]"),
            int(port),
            token.encode(),
            ssl.create_default_context() if tls else None,
        )
        fleet = Fleet(devices, meters, seed)
        wave = named_shape(
            shape, low_per_s=low, high_per_s=high, period_ms=int(period_s * 1_000), seed=seed
        )
        shown = _show if sys.stderr.isatty() and not as_json else None
        running = LoadGenerator(target, fleet, wave)
        work = asyncio.ensure_future(running.run(seconds=seconds, on_progress=shown))
        await _watched(running, work, address, give_up_s)
        return await work

    state = uvloop.run(run())
    if as_json:
        facts = {"sent": state.sent, "acked": state.acked, "resent": state.resent}
        Output(as_json).json(facts)
    else:
        click.echo(
            f"sent {state.sent:,} messages, {state.acked:,} acknowledged, "
            f"{state.resent:,} sent again"
        )


async def _watched(
    load: LoadGenerator, work: asyncio.Future[LoadState], address: str, give_up_s: float
) -> None:
    """Report why nothing gets through, once for each outage; give up after a while."""
    since_s: float | None = None
    while not work.done():
        trouble = load.trouble
        if trouble is None:
            since_s = None
        elif since_s is None:
            since_s = monotonic()
            click.echo(f"no edge at {address}: {trouble}; trying again", err=True)
        elif monotonic() - since_s > give_up_s:
            work.cancel()
            await asyncio.wait([work])
            raise Unavailable(
                f"no edge answered at {address} for {give_up_s:g} s: {trouble}; start one with "
                "`penstock ingest run` or `edge`, or wait longer with --give-up-s"
            )
        await asyncio.wait([work], timeout=LOOK_S)


def _show(state: LoadState) -> None:
    click.echo(
        f"\r{state.sent:,} sent · {state.acked:,} acknowledged · {state.backlog:,} wait ",
        err=True,
        nl=False,
    )


@click.command()
@pipeline_options
@setting_flags(INGEST_TABLE, "raw_topic")
@click.option("--reason", help="Only letters whose reason starts with this.")
def replay(
    catalog: str | None,
    data_path: str | None,
    spark: str | None,
    tariffs: str,
    reason: str | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Retry the dead letters of the metering pipeline; those that succeed now are stored.

    They are priced with the current tariffs.
    """
    from penstock.lake.catalog import open_catalog
    from penstock.metering.pipeline import metering
    from penstock.spark.link import SparkLink
    from penstock.spark.pipeline.replay import replay as replay_letters
    from penstock.spark.probes import pipeline_checks

    settings, tables, options = pipeline_settings(config, catalog, data_path, spark, flags)
    key = settings.api_key or None
    pipeline = metering(settings.url, settings.raw_topic, tariffs=tariffs, api_key=key)
    with (
        SparkLink(options) as link,
        open_catalog(tables.catalog, tables.data_path or None, create=False) as lake,
    ):
        link.require(*pipeline_checks(lake.storage, is_ours=link.is_ours))
        done = replay_letters(link.session(), lake, pipeline, reason=reason)
    click.echo(
        f"{done.letters:,} letters tried: {done.rows:,} rows stored, {done.dead:,} letters are left"
    )
