"""`penstock ingest replay`: dead letters tried again after a fix."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.ingest_run import lake_options, spark_options
from penstock.ingest.raw import RAW_TOPIC
from penstock.kernel.errors import PenstockError


@click.command()
@lake_options
@click.option("--raw-topic", default=RAW_TOPIC, show_default=True, help="Topic of the messages.")
@click.option("--reason", help="Only letters whose reason begins with this.")
def replay(
    catalog: str,
    data_path: str | None,
    spark: str | None,
    zone: str,
    raw_topic: str,
    reason: str | None,
) -> None:
    """Try the dead letters of the metering pipeline again: what goes through now is stored."""
    from penstock.lake.shell import open_catalog
    from penstock.spark.ingest.metering import metering
    from penstock.spark.ingest.replay import replay as replay_letters
    from penstock.spark.ingest.sparks import Sparks

    sparks = Sparks(spark_options(spark))
    try:
        with open_catalog(catalog, data_path, create=False) as lake:
            done: Any = replay_letters(
                sparks.session(), lake, metering(lake, raw_topic, zone=zone), reason=reason
            )
    except PenstockError as error:
        raise click.ClickException(" ".join(error.message.split())) from error
    finally:
        sparks.close()
    click.echo(
        f"{done.letters:,} letters tried: {done.rows:,} rows stored, {done.dead:,} letters are left"
    )
