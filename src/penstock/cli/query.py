"""`penstock query`: rows of a table, or of a SELECT over tables."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.output import json_flag
from penstock.cli.spark_said import spark_said
from penstock.cli.table_place import open_warehouse, place_options, told
from penstock.cli.table_view import TableOutput


@click.command()
@click.argument("text", metavar="SQL|TABLE")
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True,
              help="Rows to print at most.")  # fmt: skip
@place_options
@json_flag
@told
def query(text: str, limit: int, as_json: bool, **place: Any) -> None:
    """Print the rows of a table, or of a SELECT over tables of the lake.

    A table's name alone is read here, as far as it is printed, without an engine. A SELECT is run
    by the engine that --runner names, over one snapshot of everything it reads; topics cannot be
    queried.
    """
    with open_warehouse(place, make=False) as warehouse:
        if len(text.split()) > 1:
            with spark_said():
                found = warehouse.query(text)
            TableOutput(as_json).rows(found.slice(0, limit), found.num_rows)
        else:
            page = warehouse.rows(text.strip(), limit=limit)
            TableOutput(as_json).rows(page.rows, page.rows_total)
