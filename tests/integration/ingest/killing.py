"""Edge and topic server killed at random moments under load: every message once."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from random import Random

from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.shapes import Steady
from tests.conformance.servers import ServerProcess
from tests.integration.ingest.place import EdgeProcess, check_fleet
from tests.waiting import until


async def kill_under_load(
    directory: Path, server: ServerProcess, url: str, random: Random, *, kills: int
) -> LoadState:
    """So many kills, then the end of the load and the look at every message."""
    edge = EdgeProcess(directory, url)
    fleet = Fleet(devices=8, meters=random.choice((1, 50, 1_000)), seed=random.getrandbits(32))
    try:
        await edge.start()
        load = LoadGenerator(Target("127.0.0.1", edge.port), fleet, Steady(100))
        running = asyncio.ensure_future(load.run(seconds=1_000_000))
        for number in range(kills):
            await _life(load, running, random, edge, server)
            victims = random.choice(("edge", "server", "both")) if number else "edge"
            if not number:  # so that something is sent again, whatever chance says
                await _freeze_with_messages(load, edge)
            if victims != "server":
                edge.kill()
            if victims != "edge":
                server.kill()
                server.launch()
            if victims != "server":
                edge.launch()
        load.end()
        state = await running
    except BaseException as error:
        error.add_note(f"edge:\n{edge.log}\nserver:\n{server.log}")
        raise
    finally:
        edge.close()
    await until(lambda: server._is_ready(server.listening()), "the server")
    await check_fleet(url, fleet, state.sent_by_device)
    return state


async def _life(
    load: LoadGenerator,
    running: asyncio.Future[LoadState],
    random: Random,
    *parts: EdgeProcess | ServerProcess,
) -> None:
    """Let something be acknowledged since the last kill, then a random while pass."""
    acked = sum(device.core.acked for device in load.devices)

    def goes_on() -> bool:
        assert not running.done(), running.result()
        for part in parts:
            assert part.process.poll() is None, f"{type(part).__name__} ended:\n{part.log}"
        return sum(device.core.acked for device in load.devices) > acked + 20

    await until(goes_on, "acknowledgements after a kill", patience_s=120.0)
    end_s = time.monotonic() + random.uniform(0.0, 0.4)
    await until(lambda: time.monotonic() > end_s, "a while")


async def _freeze_with_messages(load: LoadGenerator, edge: EdgeProcess) -> None:
    """Stop an edge where it is, and wait until a device has sent what it cannot acknowledge."""
    edge.process.send_signal(signal.SIGSTOP)
    acked = sum(device.core.acked for device in load.devices)

    def are_unanswered() -> bool:
        nonlocal acked
        before, acked = acked, sum(device.core.acked for device in load.devices)
        return before == acked and any(device.core.unacked for device in load.devices)

    await until(are_unanswered, "messages without an answer")
