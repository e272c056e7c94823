"""`penstock table` and `query`: stream tables from the shell, and their coordinator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.app.tables import run_tables
from penstock.cli.options import (
    URL,
    command_options,
    group_options,
    json_flag,
    merged,
    setting_flags,
)
from penstock.cli.table_bars import refresh_with_bar, shown
from penstock.cli.table_place import (
    WAREHOUSE,
    command,
    open_warehouse,
    place_options,
    spark_said,
    tables_settings,
)
from penstock.cli.table_view import TableOutput
from penstock.config import TABLES_TABLE
from penstock.kernel.errors import Rejected
from penstock.tables.core.model import Consistency, Mode
from penstock.tables.core.schedule import parse_schedule
from penstock.tables.core.topics import DEFAULT_URL
from penstock.tables.warehouse import Warehouse


def schedule(text: str) -> str:
    """When a table is refreshed, as an option."""
    try:
        parse_schedule(text)
    except Rejected as error:
        raise click.BadParameter(error.message) from error
    return text


F = TypeVar("F", bound=Callable[..., Any])
CHANGES: Final = ("schedule", "mode", "consistency", "description", "publish")
MODE = click.Choice([mode.value.lower() for mode in Mode], case_sensitive=False)
CONSISTENCY = click.Choice([kind.value for kind in Consistency], case_sensitive=False)


topics_url = group_options([URL.but(default=DEFAULT_URL, help="URL of the topic server.")])


@click.group()
@place_options
@click.pass_context
def table(ctx: click.Context, /, **place: Any) -> None:
    """Define, inspect and refresh stream tables.

    On a terminal the output is formatted; piped or with --json it is lines of JSON. The options
    below may also follow the command.
    """
    ctx.obj = place


@table.command()
@click.argument("name")
@click.argument("query", required=False)
@click.option("--schedule", type=schedule, default="calculated", show_default=True,
              help="10s, cron, on demand.")  # fmt: skip
@click.option(
    "--mode", type=MODE, default="auto", show_default=True, help="How the table is refreshed."
)
@click.option("--consistency", type=CONSISTENCY, default="atomic", show_default=True,
              help="Whether the table changes together with its sources.")  # fmt: skip
@click.option("--description", default="", help="Description of the table.")
@click.option("--publish", default="", metavar="TOPIC",
              help="Publish the table's changes to this topic.")  # fmt: skip
@topics_url
@click.option("--replace", is_flag=True, help="Replace the definition of an existing table.")
@click.option("--wait", is_flag=True, help="Fill the table now, and show progress.")
@command(make=True)
def create(
    warehouse: Warehouse,
    output: TableOutput,
    name: str,
    query: str | None,
    replace: bool,
    wait: bool,
    url: str,
    **options: str,
) -> None:
    """Create a table from a SELECT, given as an argument or on standard input."""
    text = query if query is not None else sys.stdin.read()
    options["publish_url"] = url
    if replace:
        made = warehouse.create_or_replace(name, text, **options)
    else:
        made = warehouse.create(name, text, **options)
    output.say(f"created {made.name}", created=made.name, reads=made.sources)
    if wait:
        _refresh(warehouse, output, made.name, force=False)


@table.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--keep", is_flag=True, help="Keep tables that the folder does not define.")
@topics_url
@command(make=True)
def apply(warehouse: Warehouse, output: TableOutput, folder: Path, keep: bool, url: str) -> None:
    """Create, change and drop tables so that they match a folder of .sql files."""
    output.plan(warehouse.apply(folder, prune=not keep, url=url), done=True)


@table.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--keep", is_flag=True, help="Keep tables that the folder does not define.")
@topics_url
@command(make=True)
def plan(warehouse: Warehouse, output: TableOutput, folder: Path, keep: bool, url: str) -> None:
    """Show what `apply` would do."""
    output.plan(warehouse.plan(folder, prune=not keep, url=url), done=False)


def _changes_something(function: F) -> F:
    """Check that there is something to change before the warehouse is opened."""

    @wraps(function)
    def check(**options: Any) -> Any:
        if all(options[name] is None for name in CHANGES):
            raise click.UsageError("say what to change, such as --schedule 10s")
        return function(**options)

    return check  # type: ignore[return-value]


@table.command()
@click.argument("name")
@click.option("--schedule", type=schedule, help="10s, cron, calculated, on demand.")
@click.option("--mode", type=MODE, help="How the table is refreshed.")
@click.option(
    "--consistency", type=CONSISTENCY, help="Whether the table changes together with its sources."
)
@click.option("--description", help="Description of the table.")
@click.option(
    "--publish",
    metavar="TOPIC",
    help="Publish the table's changes to this topic; '' stops publishing.",
)
@topics_url
@_changes_something
@command()
def alter(
    warehouse: Warehouse, output: TableOutput, name: str, url: str, **options: str | None
) -> None:
    """Change how a table is refreshed; its contents stay."""
    given = {key: value for key, value in options.items() if value is not None}
    if given.get("publish"):
        given["publish_url"] = url
    altered = warehouse.alter(name, **given)
    output.say(f"altered {altered.name}", altered=altered.name, **given)


@table.command("list")
@command()
def list_(warehouse: Warehouse, output: TableOutput) -> None:
    """List tables, sources before the tables that read them."""
    output.definitions(warehouse.tables())


@table.command()
@click.option("-w", "--watch", is_flag=True, help="Keep the display up to date until Ctrl-C.")
@command()
def status(warehouse: Warehouse, output: TableOutput, watch: bool) -> None:
    """Show how fresh each table is and what it is waiting for."""
    output.status(warehouse, watch=watch)


@table.command()
@click.argument("name")
@command()
def show(warehouse: Warehouse, output: TableOutput, name: str) -> None:
    """Show everything known about a table."""
    output.definition(warehouse.explain(name), warehouse.table(name), warehouse.why(name).text)


@table.command()
@click.argument("name", required=False)
@click.option("--sql", help="Explain this query instead of a table's.")
@command()
def explain(warehouse: Warehouse, output: TableOutput, name: str | None, sql: str | None) -> None:
    """Show how a table, or a query, is refreshed from changes."""
    if (name is None) == (sql is None):
        raise click.UsageError("name a table, or give a query with --sql")
    found = warehouse.explain(name) if name is not None else warehouse.explain_query(sql or "")
    output.explained(found)


@table.command()
@click.argument("name")
@command()
def verify(warehouse: Warehouse, output: TableOutput, name: str) -> None:
    """Run a table's query on the inputs of its last refresh, and compare all rows.

    The exit code is 1 if any differ.
    """
    with spark_said():
        found = warehouse.verify(name)
    output.verified(found)
    if not found.is_same:
        sys.exit(1)


@table.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@command()
def history(warehouse: Warehouse, output: TableOutput, name: str | None, limit: int) -> None:
    """Show the refreshes of one table or all tables, newest first."""
    if name is not None:
        warehouse.table(name)
    output.history(warehouse.history(name, limit=limit))


@table.command()
@click.option("--live", is_flag=True, help="Only jobs that are queued or running.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@command()
def jobs(warehouse: Warehouse, output: TableOutput, live: bool, limit: int) -> None:
    """Show refresh jobs, newest first."""
    output.jobs(warehouse.jobs(live_only=live, limit=limit))


@table.command()
@click.argument("name")
@command()
def why(warehouse: Warehouse, output: TableOutput, name: str) -> None:
    """Explain why a table is waiting."""
    found = warehouse.why(name)
    output.say(f"{found.unit_key}: {found.text}", **found._asdict())


@table.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Run the whole query, even if nothing changed.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the coordinator's answer.")
@command()
def refresh(
    warehouse: Warehouse, output: TableOutput, name: str, force: bool, no_wait: bool
) -> None:
    """Refresh a table now: by the coordinator if one is running, otherwise in this process."""
    if no_wait:
        request_id = warehouse.ask(name, force=force)
        output.say(f"{name}: asked for", table=name, request_id=request_id)
    else:
        _refresh(warehouse, output, name, force=force)


def _refresh(warehouse: Warehouse, output: TableOutput, name: str, *, force: bool) -> None:
    """Refresh a table and print the result; a failure is an error of the command."""
    with spark_said():
        answer = refresh_with_bar(warehouse, name, force=force, hidden=output.plain)
    if not answer.ok:
        raise click.ClickException(answer.detail)
    output.say(f"{name}: {answer.detail}", table=name, **answer._asdict())


@table.command()
@click.argument("name")
@command()
def pause(warehouse: Warehouse, output: TableOutput, name: str) -> None:
    """Stop refreshing a table; its readers continue with its last good data."""
    warehouse.pause(name)
    output.say(f"paused {name}", paused=name)


@table.command()
@click.argument("name")
@command()
def resume(warehouse: Warehouse, output: TableOutput, name: str) -> None:
    """Resume refreshing a table that was paused, suspended or in error."""
    warehouse.resume(name)
    output.say(f"resumed {name}", resumed=name)


@table.command()
@click.argument("relation")
@click.option("--open", "is_open", is_flag=True, help="Open the gate again.")
@command()
def gate(warehouse: Warehouse, output: TableOutput, relation: str, is_open: bool) -> None:
    """Close a source: tables that read it are not refreshed until it is opened again."""
    (warehouse.ungate if is_open else warehouse.gate)(relation)
    word = "opened" if is_open else "closed"
    output.say(f"{word} the gate of {relation}", relation=relation, closed=not is_open)


@table.command()
@click.option("--off", is_flag=True, help="Start refreshes again.")
@click.option(
    "--wait-s", type=click.FloatRange(min=0), default=0.0, help="Wait for running refreshes."
)
@command()
def drain(warehouse: Warehouse, output: TableOutput, off: bool, wait_s: float) -> None:
    """Start no new refreshes and let running ones finish."""
    if off:
        warehouse.undrain()
        output.say("no longer draining", draining=False)
        return
    idle = warehouse.drain(wait_ms=int(wait_s * 1_000))
    text = "draining; nothing runs" if idle else "draining; some refreshes still run"
    output.say(text, draining=True, idle=idle)


@table.command()
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Also drop the tables that read it.")
@command()
def drop(warehouse: Warehouse, output: TableOutput, name: str, cascade: bool) -> None:
    """Drop a table with its contents."""
    gone = warehouse.drop(name, cascade=cascade)
    output.say(f"dropped {', '.join(gone)}", dropped=gone)


@table.command()
@command()
def health(warehouse: Warehouse, output: TableOutput) -> None:
    """Report whether tables are being kept fresh; tells saturated from not running."""
    output.health(warehouse)


@table.command()
@setting_flags(
    TABLES_TABLE, "url", "node", "parallel", "max_concurrent_refreshes", "max_workers", "pool",
    "keep_snapshots",
)  # fmt: skip
@command_options(WAREHOUSE)
def run(**flags: Any) -> None:
    """Keep tables fresh until Ctrl-C: the coordinator with its workers, in the foreground.

    Every setting can also be given in the settings file, in the table [tables], or as an
    environment variable: PENSTOCK_TABLES_ and its name in capitals.
    """
    place = merged(WAREHOUSE, flags)
    warehouse = open_warehouse(place, make=True, **flags)
    with warehouse, shown(warehouse) as say:
        run_tables(warehouse, tables_settings(place, **flags), say=say)


@table.group()
def source() -> None:
    """Declare the columns of a topic's records, so that tables can read it."""


@source.command()
@click.argument("topic")
@click.option("--schema", required=True, metavar="COLUMNS",
              help="As in CREATE TABLE: 'id BIGINT, amount DOUBLE'.")  # fmt: skip
@click.option("--key", default="", metavar="COLUMNS",
              help="Key columns: a row is the last record of a key. [default: no key]")  # fmt: skip
@topics_url
@click.option("--replace", is_flag=True, help="Replace the columns of a declared topic.")
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
def list_sources(warehouse: Warehouse, output: TableOutput) -> None:
    """List the topics that tables can read."""
    output.sources(warehouse.topics())


@source.command()
@click.argument("topic")
@command()
def remove(warehouse: Warehouse, output: TableOutput, topic: str) -> None:
    """Withdraw a topic from tables; refused while a table reads it."""
    warehouse.forget_topic(topic)
    output.say(f"topics.{topic} can no longer be read", removed=topic)


@click.command()
@click.argument("text", metavar="SQL|TABLE")
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True,
              help="Print at most this many rows.")  # fmt: skip
@place_options
@json_flag
def query(text: str, limit: int, as_json: bool, **place: Any) -> None:
    """Print the rows of a table, or of a SELECT over tables of the lake.

    A table's name alone needs no engine: only the rows to print are read. A SELECT is run by the
    engine that --runner names, over one snapshot of everything it reads; topics cannot be queried.
    """
    with open_warehouse(place, make=False) as warehouse:
        if len(text.split()) > 1:
            with spark_said():
                found = warehouse.query(text)
            TableOutput(as_json).rows(found.slice(0, limit), found.num_rows)
        else:
            page = warehouse.rows(text.strip(), limit=limit)
            TableOutput(as_json).rows(page.rows, page.rows_total)
