"""`penstock ingest run`: the whole metering pipeline, from devices to the lake."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli import placing
from penstock.cli.ingest_edge import make_edge, run_edge
from penstock.cli.ingest_status import line_of, table_of
from penstock.cli.placing import api_key_option, usage
from penstock.config import IngestSettings, load_ingest, load_spark
from penstock.ingest.shell.edge import Edge
from penstock.kernel.errors import PenstockError
from penstock.metering.tariffs import SPACE

if TYPE_CHECKING:
    from penstock.spark.ingest.runner import PipelineRunner

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_CATALOG: Final = "sqlite:warehouse.sqlite"
LOOK_S: Final = 0.5
END_S: Final = 60.0


def lake_options(function: F) -> F:
    """Where the lake is, which Spark works on it, and which prices count."""
    for option in (
        click.option(
            "--catalog", default=DEFAULT_CATALOG, show_default=True, envvar="PENSTOCK_CATALOG",
            show_envvar=True, help="sqlite:<path> or postgres:<connection words>.",
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
    catalog: str,
    data_path: str | None,
    spark: str | None,
    tariffs: str,
    live: bool | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Take meter messages of devices into the tables `readings` and `charges` until Ctrl-C.

    Prices are those of `penstock ingest tariffs`. Edge and Spark stages share one planner: when the
    lake is slow, devices wait. SIGUSR1 holds the store stage, and the next one lets it go on.
    Settings of the edge stand in the table [ingest] of the file, those of Spark in [spark]; or in
    the environment as PENSTOCK_INGEST_… and PENSTOCK_SPARK_…
    """
    import uvloop

    from penstock.app import set_up_logging
    from penstock.lake.catalog import open_catalog
    from penstock.lake.database import check_address
    from penstock.metering.pipeline import metering
    from penstock.spark.ingest.runner import PipelineRunner
    from penstock.spark.ingest.sparks import Sparks
    from penstock.spark.lake.object_store import check_store
    from penstock.spark.link import check_installed

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
            options = load_spark(file=config, place=spark)
            check_address(catalog)
        set_up_logging(settings.log)
        check_installed(options)
        check_store(options, data_path)
        sparks = Sparks(options)
        with open_catalog(catalog, data_path) as lake:
            key = settings.api_key or None
            runner = PipelineRunner(
                metering(settings.url, settings.raw_topic, tariffs=tariffs, api_key=key),
                lake,
                settings.url,
                sparks=sparks,
                api_key=key,
            )
            is_live = sys.stderr.isatty() if live is None else live
            try:
                runner.check()  # before devices are told that they may send
                uvloop.run(run_whole(settings, runner, live=is_live))
            finally:
                runner.stop()
                sparks.close()
    except PenstockError as error:
        raise click.ClickException(" ".join(error.message.split())) from error


async def run_whole(settings: IngestSettings, runner: PipelineRunner, *, live: bool) -> None:
    """Run edge and pipeline until a signal, or until the pipeline cannot go on."""
    whole = Whole(settings, runner)
    pipeline = PipelineThread(runner)

    async def beside() -> None:
        pipeline.start()  # now that the edge has made its topics
        if not live:
            await pipeline.ended
            return
        from rich.console import Console, Group
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False) as view:
            while not pipeline.ended.done():
                found = whole.status()
                view.update(Group(table_of(found), line_of(found)), refresh=True)
                await asyncio.wait([pipeline.ended], timeout=LOOK_S)
        await pipeline.ended

    def hold_or_release() -> None:
        (runner.release if runner.is_held else runner.hold)()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hold_or_release)
    try:
        await run_edge(whole.edge, settings, shown=whole, beside=beside)
    finally:
        await pipeline.stop()


class Whole:
    """Edge and pipeline as one thing: what is shown, and how much may wait between the two."""

    def __init__(self, settings: IngestSettings, runner: PipelineRunner) -> None:
        self.runner = runner
        self.edge: Edge = make_edge(settings, stages=runner.stages, downstream=self)

    @property
    def behind(self) -> int:
        """Messages in the topic that are not in the lake."""
        head_seq = max(self.runner.head_seq, self.edge.head_seq)
        return max(0, head_seq - self.runner.stored_seq)

    @property
    def room(self) -> int:
        """How many more messages the topic may take: what the stages behind it have slots for."""
        return max(0, sum(stage.window for stage in self.runner.stages) - self.behind)

    def status(self) -> dict[str, Any]:
        """The edge's status, all five stages, and how far the lake is."""
        runner, basis = self.runner, self.runner.basis
        pipeline = {
            "stored_seq": runner.stored_seq, "behind": self.behind, "trouble": runner.trouble,
            "tariffs": None if basis is None else basis._asdict(),
        }  # fmt: skip
        return {**self.edge.status(), "pipeline": pipeline}

    def prometheus(self) -> str:
        """The same as Prometheus text."""
        return (
            self.edge.prometheus()
            + "# HELP ingest_behind Messages in the topic that are not in the lake.\n"
            + "# TYPE ingest_behind gauge\n"
            + f"ingest_behind {self.behind}\n"
        )


class PipelineThread:
    """The pipeline in a thread of its own; `ended` has its error, if it came to one."""

    def __init__(self, runner: PipelineRunner) -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """End soon; batches in flight are given up, as after a crash."""
        self._runner.stop()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, END_S)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            self._runner.run()
        except Exception as found:
            error = found
        self._loop.call_soon_threadsafe(self._tell, error)

    def _tell(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
