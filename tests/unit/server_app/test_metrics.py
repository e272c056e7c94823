from __future__ import annotations

import re

from penstock.server.metrics import (
    FSYNC_BOUNDS_US,
    Sample,
    TopicSample,
    WalSample,
    json_values,
    prometheus,
)


def values(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_every_name_of_the_contract_is_there():
    found = {re.sub(r"\{.*", "", name) for name in values(prometheus(Sample()))}
    wal = ("frames", "batches", "fsyncs", "bytes_written", "rotations", "submit_full", "failures")
    assert {
        "topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live",
        "topics_bytes_live", "topics_topic_metrics_truncated", "topics_queue_topics",
        "topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions",
        "topics_ready", "topics_recovery_progress", "topics_uptime_ms", "topics_wal_queue_depth",
        "topics_wal_queue_depth_peak", "topics_wal_read_only", "topics_wal_fsync_latency_us_bucket",
        "topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count",
        *(f"topics_wal_{name}_total" for name in wal),
        "topics_storage_damaged_snapshots", "topics_storage_missing_segments",
        "topics_storage_unreadable_reads_total",
    } == found  # fmt: skip


def test_a_log_topic_has_no_numbers_of_a_queue():
    topics = [TopicSample("a", 3, 1, 3, 30), TopicSample("q", 2, 1, 2, 20, 1, 1)]
    found = values(prometheus(Sample(topics_total=2, topics=topics)))
    assert found['topics_topic_head_seq{topic="a"}'] == 3
    assert found['topics_topic_queue_ready{topic="q"}'] == 1
    assert 'topics_topic_queue_ready{topic="a"}' not in found
    assert found["topics_topic_metrics_truncated"] == 0


def test_more_topics_than_are_shown_are_told_of():
    topics = [TopicSample(f"t{number}", 1, 1, 1, 1) for number in range(1_001)]
    found = values(prometheus(Sample(topics_total=1_001, topics=topics)))
    assert found["topics_topic_metrics_truncated"] == 1
    assert sum(name.startswith("topics_topic_head_seq") for name in found) == 1_000


def test_the_buckets_of_the_histogram_add_up():
    counts = (1, 2, *([0] * (len(FSYNC_BOUNDS_US) - 2)), 4)
    found = values(prometheus(Sample(wal=WalSample(fsync_counts=counts, fsync_micros_total=9))))
    name = "topics_wal_fsync_latency_us"
    assert found[f'{name}_bucket{{le="50"}}'] == 1
    assert found[f'{name}_bucket{{le="100000"}}'] == 3
    assert found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"] == 7


def test_the_json_has_the_keys_of_the_contract():
    told = json_values(Sample(by_class={"disk": 2}))
    assert told["topics_disk"] == 2
    assert set(told["wal"]) == {
        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth",
        "queue_depth_peak", "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
    }  # fmt: skip
