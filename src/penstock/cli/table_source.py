"""`penstock table source`: which topics tables may read, and which columns their records have."""

from __future__ import annotations

import click

from penstock.cli import placing
from penstock.cli.table_place import command
from penstock.cli.table_view import TableOutput
from penstock.tables.core.topics import DEFAULT_URL
from penstock.tables.warehouse import Warehouse

topics_url = click.option(
    "--url", type=placing.url, default=DEFAULT_URL, show_default=True,
    envvar="PENSTOCK_URL", show_envvar=True,
    help="Address of the server of topics.",
)  # fmt: skip


@click.group()
def source() -> None:
    """Say which columns the records of a topic have, so that tables can read it."""


@source.command()
@click.argument("topic")
@click.option("--schema", required=True, metavar="COLUMNS",
              help="As in CREATE TABLE: 'id BIGINT, amount DOUBLE'.")  # fmt: skip
@click.option("--key", default="", metavar="COLUMNS",
              help="The last record of each is a row. [default: every record is]")  # fmt: skip
@topics_url
@click.option("--replace", is_flag=True, help="Give a topic that is declared other columns.")
@command(make=True)
def add(
    warehouse: Warehouse,
    output: TableOutput,
    topic: str,
    schema: str,
    key: str,
    url: str,
    replace: bool,
) -> None:
    """Let tables read a topic, as `topics.TOPIC`."""
    made = warehouse.declare_topic(topic, schema, key=key, url=url, replace=replace)
    rows = f"the last record for each {', '.join(made.key)}" if made.key else "every record"
    output.say(
        f"{made.name} has {len(made.columns)} columns; a row is {rows}",
        added=made.name, schema=made.schema, key=made.key,
    )  # fmt: skip


@source.command("list")
@command()
def list_(warehouse: Warehouse, output: TableOutput) -> None:
    """List the topics that tables may read."""
    output.sources(warehouse.topics())


@source.command()
@click.argument("topic")
@command()
def remove(warehouse: Warehouse, output: TableOutput, topic: str) -> None:
    """Let no table read a topic any more; refused while one does."""
    warehouse.forget_topic(topic)
    output.say(f"topics.{topic} can no longer be read", removed=topic)
