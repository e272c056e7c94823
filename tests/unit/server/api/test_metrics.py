"""The server's metrics: every name of the contract, in text and in JSON, from one declaration."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.metrics import Metrics, as_text
from penstock.server.api.metrics import (
    FSYNC_BOUNDS_US,
    METRICS,
    FirstNames,
    Scrape,
    TopicNumbers,
)
from tests.unit.server.fakes import serving


def values(metrics: Metrics[Any], source: Any) -> dict[str, float]:
    text = as_text(metrics.lines(source)).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def scraped(look: Callable[[Scrape], Any], **facts: Any) -> Any:
    """What is found on a server that has just begun."""

    async def scenario() -> Any:
        async with serving() as client:
            return look(Scrape(client.application.context, **facts))

    return asyncio.run(scenario())


def shown(**facts: Any) -> dict[str, float]:
    found: dict[str, float] = scraped(lambda scrape: values(METRICS, scrape), **facts)
    return found


def test_every_name_of_the_contract_is_there():
    found = {re.sub(r"\{.*", "", name) for name in shown()}
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
        "topics_spilled_bytes_total", "topics_partitions_failed",
    } == found  # fmt: skip


def test_a_log_topic_has_no_numbers_of_a_queue():
    topics = [TopicNumbers("a", 3, 1, 3, 30), TopicNumbers("q", 2, 1, 2, 20, 1, 1)]
    found = shown(topics=topics)
    assert found['topics_topic_head_seq{topic="a"}'] == 3
    assert found['topics_topic_queue_ready{topic="q"}'] == 1
    assert 'topics_topic_queue_ready{topic="a"}' not in found
    assert found["topics_topic_metrics_truncated"] == 0


def test_numbers_of_single_topics_are_there_only_if_some_were_asked_for():
    found = shown()
    assert not any(name.startswith("topics_topic_head_seq") for name in found)
    assert found["topics_topic_metrics_truncated"] == 0
    assert shown(is_truncated=True)["topics_topic_metrics_truncated"] == 1


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
    metrics = Metrics[Any]()
    name = "log_sync_us"
    metrics.histogram(name, "Syncs.", lambda _: (counts, 9), bounds=FSYNC_BOUNDS_US, key="sync")
    found = values(metrics, None)
    assert found[f'{name}_bucket{{le="50"}}'] == 1
    assert found[f'{name}_bucket{{le="100000"}}'] == 3
    assert found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"] == 7
    assert metrics.values(None) == {"sync_count": 7, "sync_micros_total": 9}


def test_the_json_has_the_keys_of_the_contract():
    told = scraped(METRICS.values)
    assert told["topics_disk"] == 0
    assert told["ready"] is True
    assert set(told["wal"]) == {
        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth",
        "queue_depth_peak", "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
    }  # fmt: skip


def test_of_the_json_some_numbers_are_told_alone():
    told = scraped(lambda scrape: METRICS.values(scrape, {"routers", "wal.queue_depth"}))
    assert told == {"routers": 0, "wal": {"queue_depth": 0}}
