"""Parts that report themselves to a real server: seen, missed, back, ended, and told what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.app.reporting import Reporter, node_name, report_of
from penstock.client import Client, ClientSettings
from penstock.kernel.system import SystemClock
from penstock.protocol.errors import PartNotFound, PartRefused, ReservedName
from penstock.protocol.part_answers import PartAnswer, PartCommand, PartReport, PartState
from tests.conformance.servers import ServerProcess
from tests.integration.tables.place import ENGINE, Place
from tests.waiting import until, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    try:
        yield process.start()
    finally:
        process.close()


def url_of(server: ServerProcess) -> str:
    return f"http://{server.address.host}:{server.address.port}"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(url_of(server)) as made:
        yield made


def started(*command: str, directory: Path) -> subprocess.Popen[bytes]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    clean["PYTHONPATH"] = os.pathsep.join(sys.path)  # the engine of the tests is in `tests`
    with (directory / "part.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *command],
            cwd=directory, env=clean, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def part(client: Client, name: str) -> PartState | None:
    return next((each for each in client.parts().parts if each.part == name), None)


def is_in(client: Client, name: str, *states: str) -> bool:
    found = part(client, name)
    return found is not None and found.state in states


def told(client: Client, name: str) -> list[str]:
    """What happened to a part, the newest first."""
    return [each.kind for each in client.events().events if each.name == name]


def test_an_edge_is_seen_missed_and_back(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    edge = ("ingest", "edge", "--url", url_of(server), "--port", "0", "--status-port", "0")
    process = started(*edge, "--node", "a", directory=tmp_path)
    try:
        wait_until(lambda: is_in(client, "ingest.a", "ok"), "the edge reports itself")
        assert client.parts().parts[0].kind == "server"
        assert [stage.name for stage in client.pipeline().stages] == ["accept", "reassemble"]
        wait_until(lambda: len(client.pipeline_history().t) >= 2, "a second report")
        process.kill()
        wait_until(lambda: is_in(client, "ingest.a", "away"), "it is missed")
        assert client.verdict().level == "away"
        assert [each.kind for each in client.waiting().waiting] == ["ingest"]
        process.wait()
        process = started(*edge, "--node", "a", directory=tmp_path)
        wait_until(lambda: is_in(client, "ingest.a", "ok"), "it is back")
        wait_until(lambda: client.verdict().level == "ok", "and nothing is missed")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_in(client, "ingest.a", "ended"), "it ended in good order")
        wait_until(lambda: client.verdict().level == "ok", "what ended is not missed")
    finally:
        process.kill()
        process.wait()


def test_the_coordinator_and_its_workers_report_themselves(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    place = Place(f"sqlite:{tmp_path}/lake.sqlite", tmp_path / "place")
    process = started(
        "table", "--catalog", place.address, "--runner", ENGINE, "--runner-options",
        f'{{"faults":"{place.faults}"}}', "run", "--url", url_of(server), "--node", "a",
        "--max-workers", "1", "--max-concurrent-refreshes", "1", directory=tmp_path,
    )  # fmt: skip
    try:
        place.write("raw", [1])
        place.warehouse.create("copy", "SELECT id FROM raw", schedule="1s")
        wait_until(lambda: is_in(client, "tables.a", "ok"), "the coordinator reports itself")
        wait_until(lambda: is_in(client, "worker.a-1", "ok"), "its worker too")
        worker = part(client, "worker.a-1")
        assert worker is not None
        assert worker.pid != process.pid
        os.kill(worker.pid or 0, signal.SIGKILL)

        def replaced() -> bool:
            found = part(client, "worker.a-1")
            return found is not None and found.pid != worker.pid and found.state == "ok"

        wait_until(replaced, "a new worker in the place of the killed one")
        wait_until(
            lambda: told(client, "worker.a-1") == ["part_back", "part_lost"], "both are told"
        )
        assert [each.part for each in client.parts().parts if each.kind == "worker"] == [
            "worker.a-1"
        ]
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_in(client, "tables.a", "ended"), "it ended in good order")
        assert is_in(client, "worker.a-1", "ended")
    finally:
        process.kill()
        process.wait()
        place.close()


def ingest_report(since_ms: int, held: bool) -> PartReport:
    stage = {
        "name": "store", "window": 4, "occupied": 1, "occupancy": 0.25, "rate_per_s": 1.0,
        "held": held, "may_hold": True,
    }  # fmt: skip
    other = {**stage, "name": "parse", "may_hold": False, "held": False}
    return report_of(SystemClock(), since_ms, facts={"stages": [other, stage]}, behind=0)


def test_a_stage_is_held_and_goes_on_by_commands(server: ServerProcess) -> None:
    held = False

    def obey(command: PartCommand) -> PartAnswer:
        nonlocal held
        held = command.action == "hold"
        return PartAnswer(id=command.id, done=True, held=held, text="as you say")

    async def run() -> None:
        settings = ClientSettings(url_of(server))
        reporter = Reporter(
            settings, lambda _: {"ingest.a": ingest_report(1, held)}, say=print,
            obey=("ingest.a", obey),
        )  # fmt: skip
        reporting = asyncio.ensure_future(reporter.run())
        with Client(settings) as client:

            def ask() -> None:
                wait_until(lambda: client.pipeline().stages, "a report")
                with pytest.raises(PartRefused, match="cannot be held; those that can: store"):
                    client.hold_stage("parse")
                with pytest.raises(PartRefused, match="has no stage 'sort'"):
                    client.hold_stage("sort")
                with pytest.raises(PartNotFound):
                    client.hold_stage("store", "ingest.b")
                assert client.hold_stage("store").held
                wait_until(lambda: client.pipeline().stages[1].held, "the next report says so")
                wait_until(lambda: client.verdict().level == "slow", "so does the verdict")
                assert [each.reason for each in client.waiting().waiting] == ["held"]
                assert not client.release_stage("store").held
                wait_until(lambda: not client.pipeline().stages[1].held, "it goes on")

            await asyncio.to_thread(ask)
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
        await reporter.end()

    asyncio.run(run())


def test_a_part_that_may_not_report_says_so_once_and_works_on(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, API_KEYS="root,reader:read")
    try:
        url = url_of(process.start())

        async def run() -> list[str]:
            said: list[str] = []
            settings = ClientSettings(url, "reader")
            reporter = Reporter(
                settings, lambda _: {"ingest.a": ingest_report(1, False)}, say=said.append
            )
            reporting = asyncio.ensure_future(reporter.run())
            await until(lambda: said, "it says that it may not")
            assert not reporting.done()
            reporting.cancel()
            await reporter.end()
            return said

        assert "takes no reports of this part" in asyncio.run(run())[0]
    finally:
        process.close()


def test_the_servers_own_topics_are_hidden_counted_nowhere_and_nobody_elses(
    client: Client,
) -> None:
    client.write("mine", [1])
    before = client.metrics()
    client.write("penstock.parts.probe.a", [{"x": 1}], idempotency_key=None)
    assert [row.topic for row in client.list_topics()] == ["mine"]
    assert [row.topic for row in client.list_topics("p")] == []
    assert [row.topic for row in client.list_topics("penstock.")] == ["penstock.parts.probe.a"]
    after = client.metrics()
    for name in ("topics", "records_live", "bytes_live"):
        assert after[name] == before[name]
    config = client.get_topic("penstock.parts.probe.a").config
    assert (config.durability, config.cap_records, config.priority) == ("ephemeral", 900, 1_000)
    for name in ("penstock.mine", "penstock.parts.short"):
        with pytest.raises(ReservedName):
            client.write(name, [1])
    for name in ("penstock.parts.probe.a", "penstock.commands.probe.a"):
        with pytest.raises(ReservedName):
            client.put_topic(name, durability="fsync")
    with pytest.raises(ReservedName):
        client.put_topic("jobs", type="queue", dead_letter="penstock.parts.probe.a")
    with pytest.raises(ReservedName):
        client.put_router("copy", "mine", "penstock.parts.copy.a")


def test_the_name_of_a_machine_fits_into_the_name_of_a_topic() -> None:
    assert node_name("größe 1/x") == "gr-e-1-x"
    assert node_name("...") == "..."
    assert node_name("--") == "node"
    assert node_name()
