"""1.7 Metrics: Prometheus text and JSON."""

from __future__ import annotations

import re

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import Api, at, until

PLAIN = [
    "topics_topics",
    "topics_routers",
    "topics_records_live",
    "topics_bytes_live",
    "topics_topic_metrics_truncated",
    "topics_queue_topics",
    "topics_queue_leases_in_flight",
    "topics_sse_connections",
    "topics_watch_sessions",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
    "topics_wal_frames_total",
    "topics_wal_batches_total",
    "topics_wal_fsyncs_total",
    "topics_wal_bytes_written_total",
    "topics_wal_rotations_total",
    "topics_wal_submit_full_total",
    "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak",
    "topics_wal_read_only",
]
PER_TOPIC = ["head_seq", "earliest_seq", "records_live", "bytes_live"]
PER_QUEUE = ["queue_ready", "queue_in_flight"]
JSON_KEYS = {
    "topics",
    "topics_ephemeral",
    "topics_memory",
    "topics_disk",
    "topics_fsync",
    "routers",
    "records_live",
    "bytes_live",
    "queue_topics",
    "queue_leases_in_flight",
    "sse_connections",
    "watch_sessions",
    "ready",
    "replay_progress",
    "uptime_ms",
    "wal",
}
WAL_KEYS = {
    "fsyncs",
    "frames",
    "batches",
    "bytes_written",
    "rotations",
    "queue_depth",
    "queue_depth_peak",
    "submit_full_total",
    "read_only",
    "fsync_count",
    "fsync_micros_total",
}
BUCKETS = ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
SAMPLE = re.compile(r"^([a-z_]+)(\{[^{}]*\})? (-?[0-9.e+-]+|\+Inf|NaN)$")


@pytest.fixture(scope="module")
def filled(launch) -> Api:
    """A server with a few topics, records, leases and routers, all counted."""
    api = Api(launch().address)
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        api.make(durability, durability=durability)
    api.write("fsync", "abc", 7)
    api.make("jobs", type="queue")
    api.write("jobs", 1, 2, 3)
    api.claim("jobs", max=2)
    api.route("router", "disk", "disk-copy")
    api.watch("disk")
    return api


def samples(api: Api, **query: str) -> dict[str, float]:
    """Every sample of the text, by its name with labels."""
    text = api.get("/v0/metrics", **query).body.decode()
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


@row("1.7 metrics text")
@pytest.mark.parametrize("accept", [None, "*/*", "text/plain"])
def test_the_default_is_prometheus_text(api, accept):
    answer = api.get("/v0/metrics", {} if accept is None else {"Accept": accept})
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in answer.body.decode().splitlines():
        assert not line or line.startswith(("# HELP ", "# TYPE ")) or SAMPLE.match(line), line


@row("1.7 metrics text")
def test_every_metric_of_the_contract_is_there(filled):
    found = samples(filled)
    for name in PLAIN:
        assert name in found, name
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        assert f'topics_topics_by_class{{class="{durability}"}}' in found


@row("1.7 metrics text")
def test_the_gauges_count(filled):
    found = samples(filled)
    assert found["topics_topics"] == 6
    assert found['topics_topics_by_class{class="disk"}'] == 3
    assert found['topics_topics_by_class{class="ephemeral"}'] == 1
    assert found["topics_routers"] == 1
    assert found["topics_records_live"] == 5
    assert found["topics_bytes_live"] == 9
    assert found["topics_queue_topics"] == 1
    assert found["topics_queue_leases_in_flight"] == 2
    assert found["topics_watch_sessions"] == 1
    assert found["topics_ready"] == 1
    assert found["topics_recovery_progress"] == 1
    assert found["topics_topic_metrics_truncated"] == 0
    assert found["topics_wal_read_only"] == 0
    assert found["topics_wal_frames_total"] > 0
    assert found["topics_wal_fsyncs_total"] > 0
    assert found["topics_wal_bytes_written_total"] > 0


@row("1.7 metrics topics")
def test_every_topic_has_its_gauges_if_they_are_asked_for(filled):
    assert not any("topic=" in name for name in samples(filled))
    found = samples(filled, topics="true")
    for name, value in zip(PER_TOPIC, (2, 1, 2, 6), strict=True):
        assert found[f'topics_topic_{name}{{topic="fsync"}}'] == value, name
    for name, value in zip(PER_QUEUE, (1, 2), strict=True):
        assert found[f'topics_topic_{name}{{topic="jobs"}}'] == value, name


@row("1.7 metrics text")
def test_the_time_of_syncs_is_a_histogram(filled):
    found = samples(filled)
    counts = [found[f'topics_wal_fsync_latency_us_bucket{{le="{le}"}}'] for le in BUCKETS]
    assert counts == sorted(counts), "buckets are cumulative"
    assert counts[-1] == found["topics_wal_fsync_latency_us_count"] > 0
    assert found["topics_wal_fsync_latency_us_sum"] > 0
    named = [key for key in found if key.startswith("topics_wal_fsync_latency_us_bucket")]
    assert len(named) == len(BUCKETS)


@row("1.7 metrics text")
def test_every_metric_has_a_type(filled):
    text = filled.get("/v0/metrics").body.decode()
    typed = set(re.findall(r"^# TYPE ([a-z_]+) (?:gauge|counter|histogram)$", text, re.MULTILINE))
    for name in [*PLAIN, "topics_wal_fsync_latency_us", "topics_topics_by_class"]:
        assert name in typed, name


@row("1.7 metrics JSON")
@pytest.mark.parametrize("accept", ["application/json", "text/html, application/json;q=0.5"])
def test_json_for_who_asks_for_it(filled, accept):
    answer = filled.get("/v0/metrics", {"Accept": accept})
    body = expect.success(answer, JSON_KEYS, optional={"performance", "storage"})
    assert set(body["wal"]) == WAL_KEYS
    assert (body["topics"], body["topics_disk"], body["topics_fsync"]) == (6, 3, 1)
    assert (body["routers"], body["records_live"], body["bytes_live"]) == (1, 5, 9)
    assert (body["queue_topics"], body["queue_leases_in_flight"]) == (1, 2)
    assert (body["watch_sessions"], body["replay_progress"]) == (1, 1)
    assert body["ready"] in (True, 1)
    assert body["wal"]["frames"] > 0


@row("1.7 metrics text")
def test_open_streams_are_counted(filled):
    with EventStream(filled.address, at("jobs", "work") + "?node=n") as stream:
        stream.frame()
        assert samples(filled)["topics_sse_connections"] == 1
    until(lambda: samples(filled)["topics_sse_connections"] == 0, "the stream is gone")
