"""Which records of a topic have become cold: whole segments of the oldest, behind the hot part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB
from penstock.topics.segments import Run
from penstock.topics.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOptions:
    """When records become cold.

    The last `hot_segments` times `segment_records_max` records of a topic stay hot, or fewer if
    these have more than `hot_bytes_max` bytes (0: however many). Of those before, a segment is
    made when it is full, or when its first record is older than `segment_age_ms_max`.
    """

    segment_records_max: int = 10_000
    segment_bytes_max: int = 64 * MIB
    segment_age_ms_max: int = 3_600_000
    hot_segments: int = 4
    hot_bytes_max: int = 0

    def __post_init__(self) -> None:
        if min(self.segment_records_max, self.segment_bytes_max, self.segment_age_ms_max) < 1:
            raise Rejected(f"expected segments of at least one record, byte and ms, found {self}")
        if min(self.hot_segments, self.hot_bytes_max) < 0:
            raise Rejected(f"expected a hot part of no less than nothing, found {self}")


def segments_to_seal(topic: Topic, options: SealOptions, now_ms: int) -> Iterator[list[Run]]:
    """The next segments of a topic, oldest first, each as the runs of its blocks.

    Records that only memory has are never among them.
    """
    if topic.config.durability == "ephemeral":
        return
    slots = topic.slots
    end = slots.hot_from(options.hot_segments * options.segment_records_max, options.hot_bytes_max)
    segment: list[Run] = []
    records = size_bytes = 0
    for run in slots.runs(slots.cold_count, end, options.segment_records_max):
        run_bytes = sum(run.sizes)
        is_full = records + len(run.sizes) > options.segment_records_max
        if segment and (is_full or size_bytes + run_bytes > options.segment_bytes_max):
            yield segment
            segment, records, size_bytes = [], 0, 0
        segment.append(run)
        records += len(run.sizes)
        size_bytes += run_bytes
    if not segment:
        return
    is_full = records >= options.segment_records_max or size_bytes >= options.segment_bytes_max
    if is_full or segment[0].times[0] < now_ms - options.segment_age_ms_max:
        yield segment
