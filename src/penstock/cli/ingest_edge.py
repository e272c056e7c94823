"""`penstock ingest edge`: the port for devices, in the foreground."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from penstock.cli import placing
from penstock.cli.placing import api_key_option, usage
from penstock.config import GROWTHS, LOG_LEVELS, IngestSettings, load_ingest
from penstock.ingest.shell.edge import Edge
from penstock.ingest.shell.status import Shown, StatusServer
from penstock.ingest.stages import Downstream, Stage
from penstock.ingest.tokens import DeviceTokens, parse_tokens
from penstock.kernel.errors import PenstockError, Rejected


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
    import uvloop

    from penstock.app import set_up_logging

    async def run() -> None:
        running = make_edge(settings)
        await run_edge(running, settings, shown=running)

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
        set_up_logging(settings.log)
        uvloop.run(run())
    except PenstockError as error:
        raise click.ClickException(error.message) from error


async def run_edge(
    edge: Edge,
    settings: IngestSettings,
    *,
    shown: Shown,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run an edge until SIGINT, SIGTERM, or the end of what runs beside it."""
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
    status = StatusServer(shown)
    status_host, status_port = await status.start(settings.status_host, settings.status_port)
    gc.freeze()  # what is there now stays: no collection needs to look at it again
    if settings.port_file is not None:
        _tell(settings.port_file, f"{host}:{port}\n{status_host}:{status_port}\n")
    click.echo(
        f"penstock takes messages of devices on {host}:{port} into {settings.raw_topic} at "
        f"{settings.url} · status on http://{status_host}:{status_port}",
        err=True,
    )
    others = [asyncio.ensure_future(edge.failed())]
    if beside is not None:
        others.append(asyncio.ensure_future(beside()))
    try:
        await asyncio.wait([stopping, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        click.echo("the edge ends: what was read is made durable and acknowledged", err=True)
        await edge.stop(settings.drain_ms / 1_000)
        await status.stop()
    for other in others:
        if not other.done():
            other.cancel()
        with suppress(asyncio.CancelledError):
            await other


def make_edge(
    settings: IngestSettings,
    *,
    stages: Sequence[Stage] = (),
    downstream: Downstream | None = None,
) -> Edge:
    """An edge as the settings have it, writing to a topic server. Called on its loop."""
    from penstock.app import tls_context
    from penstock.client import ClientSettings
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
    """The tokens of a file; None if there is no file, and every device may send."""
    if path is None:
        return None
    try:
        return parse_tokens(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"expected device tokens in {path}: {error}") from error
    except Rejected as error:
        raise Rejected(f"{path}: {error.message}") from error


def _tell(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
