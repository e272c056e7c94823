from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.api.metrics import (
    FSYNC_BOUNDS_US,
    FirstNames,
    Sample,
    TopicSample,
    WalSample,
    json_values,
    prometheus,
    prometheus_lines,
)


def values(sample: Sample) -> dict[str, float]:
    text = prometheus(prometheus_lines(sample)).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_every_name_of_the_contract_is_there():
    found = {re.sub(r"\{.*", "", name) for name in values(Sample())}
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
        "topics_storage_unreadable_reads_total", "topics_hot_bytes", "topics_hot_bytes_limit",
        "topics_spilled_bytes_total",
    } == found  # fmt: skip


def test_a_log_topic_has_no_numbers_of_a_queue():
    topics = [TopicSample("a", 3, 1, 3, 30), TopicSample("q", 2, 1, 2, 20, 1, 1)]
    found = values(Sample(topics_total=2, topics=topics))
    assert found['topics_topic_head_seq{topic="a"}'] == 3
    assert found['topics_topic_queue_ready{topic="q"}'] == 1
    assert 'topics_topic_queue_ready{topic="a"}' not in found
    assert found["topics_topic_metrics_truncated"] == 0


def test_numbers_of_single_topics_are_there_only_if_some_were_asked_for():
    found = values(Sample(topics_total=3))
    assert not any(name.startswith("topics_topic_head_seq") for name in found)
    assert found["topics_topic_metrics_truncated"] == 0
    assert values(Sample(is_truncated=True))["topics_topic_metrics_truncated"] == 1


@given(
    st.lists(st.text("abc", max_size=4), unique=True), st.integers(1, 9), st.text("ab", max_size=1)
)
def test_the_first_names_are_those_of_sorting_them_all(names, most, prefix):
    wanted = sorted(name for name in names if name.startswith(prefix) and "c" not in name)
    first = FirstNames(most)
    for _ in first.look_at([names[:5], names[5:]], prefix, lambda name: "c" not in name):
        pass
    assert (first.names, first.found) == (wanted[:most], len(wanted))


def test_the_buckets_of_the_histogram_add_up():
    counts = (1, 2, *([0] * (len(FSYNC_BOUNDS_US) - 2)), 4)
    found = values(Sample(wal=WalSample(fsync_counts=counts, fsync_micros_total=9)))
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
