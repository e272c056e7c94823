"""Records that cannot be read from disk: whoever watches them is told, and can come back."""

from __future__ import annotations

from tests.conformance.servers import ServerProcess
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import Api, payloads, until

COLD = {"COMPACT_LOG_BYTES": 20_000, "SEGMENT_MAX_EVENTS": 40, "HOT_RETAIN_SEGMENTS": 1}


def snapshots_made(api: Api) -> int:
    """How many are done: files that none names yet are not read after a kill, the log is."""
    made: int = api.get("/v0/scheduler").json["compaction"]["done_total"]
    return made


def test_a_watcher_is_told_that_records_cannot_be_read(tmp_path):
    server = ServerProcess(tmp_path, **COLD)
    try:
        server.start()
        api = Api(server.address)
        for _ in range(40):
            api.write("t", *["x" * 100] * 10)
        until(lambda: snapshots_made(api), "a snapshot that names cold files")
        server.kill()
        kept = {path: path.read_bytes() for path in (tmp_path / "data" / "cold").iterdir()}
        for path, data in kept.items():
            path.write_bytes(data[:60] + bytes([data[60] ^ 0xFF]) + data[61:])
        server.start()
        api = Api(server.address)
        api.write("other", 1)
        for _ in range(2):  # and again: it is not forgotten, nor tried without end
            with EventStream(api.address, api.watch("t", "other")) as stream:
                told = stream.until("error")[-1]
                assert told.data["code"] == "records_unreadable"
                assert (told.data["topic"], told.data["first_seq"]) == ("t", 1)
                assert told.data["message"].startswith("topic t cannot be read: ")
                assert stream.rest() == [], "then the stream ends"
        with Socket(api.address) as ws:
            ws.ask("subscribe", "subscribed", topics={"t": {}, "other": {}})
            assert ws.until("error")["code"] == "records_unreadable"
            api.write("other", 2)
            assert [record["data"] for record in ws.records(2)][-1] == 2, "the others go on"
        for path, data in kept.items():
            path.write_bytes(data)
        until(lambda: len(payloads(api.diff("t"))) > 0, "the records")
        with EventStream(api.address, api.watch("t")) as stream:
            assert len(stream.records(400)) == 400
    finally:
        server.discard()
