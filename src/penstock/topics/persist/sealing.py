"""Which records of a topic have become cold: whole segments of the oldest, before the hot part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB
from penstock.topics.core.blocks import BLOCK_BYTES_MAX, Run
from penstock.topics.core.record_row import HOT_SLOT_BYTES
from penstock.topics.core.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOptions:
    """When records become cold.

    The last `hot_segments` times `segment_records_max` records of a topic stay hot, or fewer if
    they exceed `hot_bytes_max` bytes (0: no limit). From the records before those, a segment is
    made when it is full, or when its first record is older than `segment_age_ms_max`. If the hot
    records of all topics of a partition exceed `node_bytes_max` (0: no limit), the topics with the
    most bytes keep less.
    """

    segment_records_max: int = 10_000
    segment_bytes_max: int = 64 * MIB
    segment_age_ms_max: int = 3_600_000
    hot_segments: int = 4
    hot_bytes_max: int = 0
    node_bytes_max: int = 0

    def __post_init__(self) -> None:
        if min(self.segment_records_max, self.segment_bytes_max, self.segment_age_ms_max) < 1:
            raise Rejected(f"expected segments of at least one record, byte and ms, found {self}")
        if min(self.hot_segments, self.hot_bytes_max, self.node_bytes_max) < 0:
            raise Rejected(f"expected a hot part of no less than nothing, found {self}")


def share_of_each(topics: Iterable[Topic], bytes_max: int) -> int:
    """How much each topic may keep so that all together stay within `bytes_max`; 0 if they do."""
    sizes = sorted(topic.row.hot_bytes for topic in topics)
    left = bytes_max
    if sum(sizes) <= bytes_max:
        return 0
    for place, size_bytes in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size_bytes > share:
            return max(share, 1)
        left -= size_bytes
    return 0


def segments_to_seal(
    topic: Topic, options: SealOptions, now_ms: int, share_bytes: int = 0
) -> Iterator[list[Run]]:
    """The next segments of a topic, oldest first, each as the runs of its blocks.

    Records that are only in memory are never included. A topic above its share seals the excess,
    even if that is less than a segment.
    """
    if topic.config.durability == "ephemeral":
        return
    slots = topic.row
    is_over = bool(share_bytes) and slots.hot_bytes > share_bytes
    caps = [cap for cap in (options.hot_bytes_max, share_bytes if is_over else 0) if cap]
    hot_slots = options.hot_segments * options.segment_records_max
    if is_over:
        hot_slots = min(hot_slots, max(1, share_bytes // HOT_SLOT_BYTES))
    end = slots.hot_from(hot_slots, min(caps, default=0))
    segment: list[Run] = []
    records = size_bytes = 0
    for run in slots.runs(0, end, options.segment_records_max):
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
    is_full = is_full or (is_over and size_bytes >= BLOCK_BYTES_MAX)
    if is_full or segment[0].times[0] < now_ms - options.segment_age_ms_max:
        yield segment
