"""1.7 Probes, and what a server says while it reads its log."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import Api, at, payloads, records, until


@row("1.7 health", "1.0 prefix")
@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(api, path):
    body = expect.success(api.get(path), {"status", "version", "uptime_ms"})
    assert body["status"] == "ok"
    assert isinstance(body["version"], str)
    assert expect.whole(body["uptime_ms"])
    later = api.get(path).json["uptime_ms"]
    assert later >= body["uptime_ms"] >= 0


@row("1.7 ready", "1.0 prefix")
@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready(api, topic, path):
    api.make(topic)
    body = expect.success(api.get(path), {"status", "wal_replay_complete", "topics"})
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    assert expect.whole(body["topics"])
    assert body["topics"] >= 1


@row("1.0 prefix")
def test_only_the_probes_have_names_at_the_root(api):
    for path in ("/health", "/ready", "/metrics", "/watch"):
        expect.refusal(api.get(path), 404, "not_found")


@row("1.7 port file", "1.7 ready")
def test_the_port_file_says_where_the_server_listens_and_ready_counts_its_topics(launch):
    process = launch()
    host, port = process.address
    assert host == "127.0.0.1"
    assert port != 0
    api = Api(process.address)
    for number in range(3):
        api.make(f"t{number}")
    assert api.get("/readyz").json["topics"] == 3


@row("1.7 replay", "1.0 retry-after")
def test_while_the_log_is_read_the_server_is_alive_but_not_ready(launch):
    process = launch()
    api = Api(process.address)
    batch = b'{"records":[' + b",".join([b'{"data":"%030d"}' % 0] * 10_000) + b"]}"
    api.write("small", "first")
    for _ in range(15):
        api.request("POST", at("big") + "?return_seqs=false", batch)
    process.kill()
    process.launch()
    api = Api(process.listening())
    seen = {"not_ready": 0}

    def ready() -> bool:
        health, answer = api.get("/healthz"), api.get("/readyz")
        data = api.post(at("small"), records("later"))
        assert health.status == 200
        if answer.status == 200:
            return True
        for refused in [answer] + [data] * (data.status != 200):
            detail = expect.refusal(refused, 503, "not_ready")
            assert set(detail) == {"replay_progress"}
            assert 0 <= detail["replay_progress"] <= 1
        seen["not_ready"] += 1
        return False

    until(ready, "the end of the replay", 30)
    assert api.state("big")["head_seq"] == 150_000
    found = payloads(api.diff("small"))
    assert found == ["first"] + ["later"] * (len(found) - 1), "no write before the log was read"
    assert seen["not_ready"] > 0, "the listener opened only after the replay"
