"""The ingest programs: the edge alone, and the edge with the metering pipeline behind it."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import uvloop

from penstock.app.process import (
    set_up_interpreter,
    set_up_logging,
    tls_context,
    write_atomically,
)
from penstock.app.reporting import Reporter, node_name, report_of
from penstock.client import Client, ClientSettings
from penstock.config import IngestSettings
from penstock.flow.meter import Stage
from penstock.ingest.backlog import Backlog, Downstream
from penstock.ingest.edge import Edge
from penstock.ingest.report import HOLDS, ingest_facts, state_of
from penstock.ingest.status import Shown
from penstock.ingest.tokens import DeviceTokens, parse_tokens
from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.protocol.metrics import CONTENT_TYPE
from penstock.protocol.part_answers import PartAnswer, PartCommand, PartReport
from penstock.server.http import Listener
from penstock.server.http.message import Exchange
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from penstock.spark.pipeline.runner import PipelineRunner
    from penstock.spark.pipeline.upkeep import Upkeep

INGEST: Final = "ingest"
PLAIN: Final = b"text/plain"
LOOK_S: Final = 0.5
STATUS_S: Final = 5.0
END_S: Final = 60.0

Say = Callable[[str], None]
OnLook = Callable[[dict[str, Any]], None]


class IngestPlace(NamedTuple):
    """Where the pipeline stores its data: the lake, its Spark, and the tariffs in effect."""

    catalog: str
    data_path: str | None
    spark: SparkOptions
    tariffs: str
    snapshots_kept_ms: int | None = None


def run_edge_alone(settings: IngestSettings, *, say: Say) -> None:
    """Write device messages to a topic until SIGINT or SIGTERM."""

    async def run() -> None:
        edge = make_edge(settings)
        await run_edge(edge, settings, shown=edge, say=say)

    set_up_logging(settings.log)
    uvloop.run(run())


def run_ingest(
    settings: IngestSettings, place: IngestPlace, *, say: Say, on_look: OnLook | None = None
) -> None:
    """Write meter messages to the lake until SIGINT or SIGTERM.

    `on_look` gets the status twice a second.
    """
    from penstock.lake.catalog import open_catalog
    from penstock.metering.pipeline import metering
    from penstock.spark.lake.object_store import check_store
    from penstock.spark.link import SparkLink, check_installed
    from penstock.spark.pipeline.runner import IN_FLIGHT, PipelineRunner, RunnerOptions
    from penstock.spark.pipeline.upkeep import Upkeep

    set_up_logging(settings.log)
    set_up_interpreter()
    check_installed(place.spark)
    check_store(place.spark, place.data_path)
    link = SparkLink(place.spark)
    with open_catalog(place.catalog, place.data_path) as lake:
        key = settings.api_key or None
        pipeline = metering(settings.url, settings.raw_topic, tariffs=place.tariffs, api_key=key)
        # Three eighths for batches that are not stored: with the edge's limits, which take five,
        # large messages stay within the budget where windows cannot shrink.
        options = RunnerOptions(batch_bytes_max=settings.window_bytes * 3 // 8 // IN_FLIGHT)
        runner = PipelineRunner(
            pipeline, lake, settings.url, link=link, api_key=key, options=options
        )
        tables = [*pipeline.targets, pipeline.dead_letters]
        try:
            runner.check()  # before devices are told that they may send
            runner.warm_up()
            kept_ms = place.snapshots_kept_ms
            with Upkeep(place.catalog, lake.data_path, tables, kept_ms=kept_ms) as upkeep:
                uvloop.run(run_whole(settings, runner, upkeep, say=say, on_look=on_look))
        finally:
            runner.stop()
            link.close()


async def run_edge(
    edge: Edge,
    settings: IngestSettings,
    *,
    shown: Shown,
    say: Say,
    beside: Callable[[], Awaitable[None]] | None = None,
    pipeline: Whole | None = None,
) -> None:
    """Run an edge until SIGINT, SIGTERM, or the end of what runs beside it.

    The server is told how it is, with its `pipeline`, once a second.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(edge.start(settings.host, settings.port))
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    host, port = starting.result()
    status = Listener(partial(answer_status, shown))
    status_host, status_port = await _listen(status, settings)
    gc.freeze()  # the objects so far are permanent: exclude them from collections
    if settings.port_file is not None:
        write_atomically(settings.port_file, f"{host}:{port}\n{status_host}:{status_port}\n")
    say(
        f"penstock takes messages of devices on {host}:{port} into {settings.raw_topic} at "
        f"{settings.url} · status on http://{status_host}:{status_port}"
    )
    reporter = make_reporter(settings, shown, say=say, pipeline=pipeline)
    reporting = asyncio.ensure_future(reporter.run())
    others = [asyncio.ensure_future(edge.failed())]
    if beside is not None:
        others.append(asyncio.ensure_future(beside()))
    try:
        await asyncio.wait([stopping, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        say("the edge ends: what was read is made durable and acknowledged")
        await edge.stop(settings.drain_ms / 1_000)
        await status.abort()
        reporting.cancel()
        await reporter.end()
    for other in others:
        if not other.done():
            other.cancel()
        with suppress(asyncio.CancelledError):
            await other


def make_reporter(
    settings: IngestSettings, shown: Shown, *, say: Say, pipeline: Whole | None = None
) -> Reporter:
    """What tells the server how this ingest is, and carries out commands of its pipeline."""
    part, clock = f"{INGEST}.{node_name(settings.node)}", SystemClock()
    since_ms, told_ms = clock.now_ms(), 0

    def look(missed: bool) -> dict[str, PartReport]:
        nonlocal told_ms
        status, now_ms = shown.status(), clock.now_ms()
        facts = ingest_facts(
            status,
            now_ms=now_ms,
            after_ms=0 if missed else told_ms,
            budget_bytes=settings.window_bytes,
            **({} if pipeline is None else pipeline.flow()),
        )
        told_ms = now_ms
        state, text = state_of(status)
        behind = (status.get("pipeline") or {}).get("behind")
        plain = msgspec.to_builtins(facts)
        report = report_of(clock, since_ms, state=state, text=text, behind=behind, facts=plain)
        return {part: report}

    server = ClientSettings(settings.url, settings.api_key or None)
    obey = None if pipeline is None else (part, pipeline.obey)
    return Reporter(server, look, say=say, obey=obey)


async def run_whole(
    settings: IngestSettings,
    runner: PipelineRunner,
    upkeep: Upkeep | None = None,
    *,
    say: Say,
    on_look: OnLook | None = None,
) -> None:
    """Run edge and pipeline until a signal, or until the pipeline fails.

    SIGUSR1 pauses the store stage, and the next one resumes it.
    """
    whole = Whole(settings, runner, upkeep)
    pipeline = PipelineThread(runner)

    async def beside() -> None:
        pipeline.start()  # now that the edge has created its topics
        while on_look is not None and not pipeline.ended.done():
            on_look(whole.status())
            await asyncio.wait([pipeline.ended], timeout=LOOK_S)
        await pipeline.ended

    def hold_or_release() -> None:
        (runner.release if runner.is_held else runner.hold)()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hold_or_release)
    try:
        await run_edge(whole.edge, settings, shown=whole, say=say, beside=beside, pipeline=whole)
    finally:
        await pipeline.stop()


def make_edge(
    settings: IngestSettings,
    *,
    stages: Sequence[Stage] = (),
    downstream: Downstream | None = None,
) -> Edge:
    """Create an edge from its settings, writing to a topic server. Called on its loop."""
    from penstock.client.raw_topic import ServerTopic
    from penstock.flow.planner import PlannerPolicy

    client = ClientSettings(settings.url, settings.api_key or None)
    return Edge(
        ServerTopic(client, settings.topic_names()),
        limits=settings.edge_limits(),
        tokens=read_tokens(settings.tokens_file),
        policy=PlannerPolicy(
            stages=("accept",),
            growth="cubic" if settings.growth == "cubic" else "aimd",
            budget_bytes=settings.window_bytes,
        ),
        stages=stages,
        downstream=downstream,
        tls=tls_context(settings.tls_cert, settings.tls_key),
    )


def read_tokens(path: Path | None) -> DeviceTokens | None:
    """The tokens in a file; None if there is no file, and every device may send."""
    if path is None:
        return None
    try:
        return parse_tokens(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"cannot read the device tokens in {path}: {error}") from error
    except Rejected as error:
        raise Rejected(f"{path}: {error.message}") from error


def answer_status(shown: Shown, exchange: Exchange) -> None:
    """The application of the status port: `/status` as JSON, `/metrics` for Prometheus."""
    request = exchange.request
    if request.method != "GET":
        exchange.reply(
            405, b"only GET is allowed\n", content_type=PLAIN, headers=((b"allow", b"GET"),)
        )
    elif request.path == "/metrics":
        exchange.reply(200, shown.prometheus(), content_type=CONTENT_TYPE)
    elif request.path in ("/status", "/"):
        exchange.reply(200, msgspec.json.encode(shown.status()) + b"\n")
    else:
        exchange.reply(404, b"not found; there are /metrics and /status\n", content_type=PLAIN)


async def _listen(listener: Listener, settings: IngestSettings) -> tuple[str, int]:
    host, port = settings.status_host, settings.status_port
    try:
        return await listener.start(host, port)
    except OSError as error:
        raise Rejected(
            f"cannot listen for status on {host}:{port}: {error.strerror or error}: choose another "
            "with --status-port"
        ) from error


def fetch_status(url: str) -> dict[str, Any]:
    """The status of an edge, from its status port; `CallError` if it does not answer."""
    with Client(ClientSettings(url, timeout_s=STATUS_S)) as client:
        return client.ingest_status()


class Whole:
    """Edge and pipeline combined: their status, and how much may be queued between them."""

    def __init__(
        self, settings: IngestSettings, runner: PipelineRunner, upkeep: Upkeep | None = None
    ) -> None:
        self.runner = runner
        self._upkeep = upkeep
        self._backlog = Backlog(settings.backlog_ms)
        self.edge: Edge = make_edge(settings, stages=runner.stages, downstream=self)

    @property
    def behind(self) -> int:
        """Messages in the topic that are not in the lake."""
        head_seq = max(self.runner.head_seq, self.edge.head_seq)
        return max(0, head_seq - self.runner.stored_seq)

    @property
    def room(self) -> int:
        """How many more messages the topic may take."""
        slots = sum(stage.window for stage in self.runner.stages)
        return self._backlog.room(self.behind, slots)

    def refused(self) -> None:
        """Called while messages wait at the edge: what takes them out of the topic is the limit."""
        self.runner.job_stages.refused()

    def measure(self, now_ms: int) -> None:
        """Called every 100 ms: measures how fast the topic drains."""
        self._backlog.measure(self.behind, self.runner.stored_seq, now_ms)

    def status(self) -> dict[str, Any]:
        """The edge's status, all five stages, and the progress of the lake."""
        runner, basis = self.runner, self.runner.basis
        pipeline = {
            "stored_seq": runner.stored_seq, "behind": self.behind,
            "drain_per_s": round(self._backlog.drain_per_s), "trouble": runner.trouble,
            "tariffs": None if basis is None else basis._asdict(), "held": runner.is_held,
            "upkeep": None if self._upkeep is None else self._upkeep.trouble,
        }  # fmt: skip
        return {**self.edge.status(), "pipeline": pipeline}

    def flow(self) -> dict[str, list[str]]:
        """What is read and written, as queries name it."""
        runner, basis = self.runner, self.runner.basis
        spaces = [] if basis is None else [f"spaces.{basis.space}"]
        reads = [f"topics.{runner.pipeline.raw_topic}", *spaces]
        return {"reads": reads, "writes": list(runner.pipeline.targets)}

    def obey(self, command: PartCommand) -> PartAnswer:
        """Hold the last stage, or let it go on."""
        runner, held = self.runner, command.action == "hold"
        if command.stage != HOLDS or command.action not in ("hold", "go"):
            text = f"only stage {HOLDS} can be held, not {command.stage}"
            return PartAnswer(id=command.id, done=False, held=False, text=text)
        (runner.hold if held else runner.release)()
        text = f"{HOLDS} is held" if held else f"{HOLDS} goes on"
        return PartAnswer(id=command.id, done=True, held=runner.is_held, text=text)

    def prometheus(self) -> bytes:
        """The same as Prometheus text."""
        return self.edge.numbers(self.behind).prometheus()


class PipelineThread:
    """The pipeline in its own thread; `ended` holds its error, if it failed."""

    def __init__(self, runner: PipelineRunner) -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop soon; batches in flight are abandoned, as after a crash."""
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
