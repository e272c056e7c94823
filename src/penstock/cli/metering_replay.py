"""`penstock metering replay`: retries dead letters after a fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli import placing
from penstock.cli.ingest_run import lake_options
from penstock.cli.placing import api_key_option, usage
from penstock.config import load_ingest, load_spark, load_tables
from penstock.kernel.errors import PenstockError


@click.command()
@lake_options
@click.option(
    "--url", type=placing.url, help="Where the topic server is. [default: http://127.0.0.1:4000]"
)
@api_key_option(envvars=["PENSTOCK_INGEST_API_KEY"])
@click.option("--raw-topic", help="Topic of the messages. [default: ingest.raw]")
@click.option("--reason", help="Only letters whose reason begins with this.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml if it is here]",
)
def replay(
    catalog: str | None,
    data_path: str | None,
    spark: str | None,
    tariffs: str,
    reason: str | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Try the dead letters of the metering pipeline again: what goes through now is stored.

    They are priced with the tariffs as they are now.
    """
    from penstock.lake.catalog import open_catalog
    from penstock.lake.database import check_address
    from penstock.metering.pipeline import metering
    from penstock.spark.link import SparkLink
    from penstock.spark.pipeline.replay import replay as replay_letters
    from penstock.spark.probes import pipeline_checks

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
            options = load_spark(file=config, place=spark)
            tables = load_tables(file=config, flags={"catalog": catalog, "data_path": data_path})
            check_address(tables.catalog)
        key = settings.api_key or None
        pipeline = metering(settings.url, settings.raw_topic, tariffs=tariffs, api_key=key)
        with (
            SparkLink(options) as link,
            open_catalog(tables.catalog, tables.data_path or None, create=False) as lake,
        ):
            link.require(*pipeline_checks(lake.storage, is_ours=link.is_ours))
            done = replay_letters(link.session(), lake, pipeline, reason=reason)
    except PenstockError as error:
        raise click.ClickException(" ".join(error.message.split())) from error
    click.echo(
        f"{done.letters:,} letters tried: {done.rows:,} rows stored, {done.dead:,} letters are left"
    )
