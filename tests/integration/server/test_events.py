"""Events and history of a real server, over a restart."""

from __future__ import annotations

from pathlib import Path

from penstock import errors
from penstock.client import Client
from penstock.protocol.server_events import EVENTS_TOPIC
from tests.conformance.servers import ServerProcess
from tests.waiting import wait_until


def test_what_happened_survives_a_restart_and_history_moves(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, COMPACT_LOG_BYTES=1)
    try:
        address = process.start().address
        with Client(f"http://{address.host}:{address.port}") as client:
            for number in range(50):
                client.write("t", [{"n": number}])
            wait_until(lambda: client.events(kind="snapshot_made").events, "a snapshot")
            wait_until(lambda: any(client.history(["in"]).columns["in"]), "a sample")
            snapshots = len(client.events(kind="snapshot_made").events)
            wait_until(lambda: records_of(client, EVENTS_TOPIC) >= snapshots, "its record")
        process.terminate()
        process.wait()
        address = process.start().address
        with Client(f"http://{address.host}:{address.port}") as client:
            page = client.events()
            kinds = [event.kind for event in page.events]
            assert "snapshot_made" in kinds
            assert "started" in kinds
            ids = [event.id for event in page.events]
            assert ids == sorted(ids, reverse=True)
    finally:
        process.close()


def records_of(client: Client, topic: str) -> int:
    """How many records a topic has. One that nothing was written to yet is not there."""
    try:
        return client.get_topic(topic).count
    except errors.TopicNotFound:
        return 0
