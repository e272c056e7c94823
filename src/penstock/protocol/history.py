"""The server over time: which series there are, and the answer that shows them.

`SERIES` is the only list of them: the sampler fills it, `/v0/history` answers with it, the
reference is made from it.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from msgspec import Struct

from penstock.protocol.errors import InvalidRequest

BANDS: Final = 5
"""The bands of the scheduler, B0 to B4."""
SECONDS_KEPT: Final = 900
"""Seconds of history: 15 minutes."""
MINUTES_KEPT: Final = 1_440
"""Minutes of history: 24 hours."""
STEPS: Final = ("1s", "1m")


class Series(NamedTuple):
    """One number over time. A rate is counted over its step; anything else is as sampled."""

    name: str
    unit: str
    text: str


SERIES: Final = (
    Series("in", "records/s", "Records written by clients."),
    Series("in_bytes", "bytes/s", "Bytes of their data and meta."),
    Series("pushed", "records/s", "Records pushed to watchers and workers, once for each of them."),
    Series("commits", "1/s", "Entries written to the log."),
    Series("commit_p50_ms", "ms", "From submission to the log until durable, median."),
    Series("commit_p99_ms", "ms", "The same, 99th percentile."),
    Series("push_p50_ms", "ms", "From a change of a topic to its turn, median."),
    Series("push_p99_ms", "ms", "The same, 99th percentile."),
    Series("fsync_p50_ms", "ms", "Syncs of the log, median."),
    Series("fsync_p99_ms", "ms", "The same, 99th percentile."),
    Series("pressure", "0-1", "The governor's pressure."),
    Series("rung", "0-4", "The rung of the ladder."),
    Series("coalesce_ms", "ms", "How long turns are delayed to carry more."),
    Series("commit_window_ms", "ms", "How long commits wait for more."),
    *(
        Series(f"b{band}_depth", "topics", f"Topics that wait in band B{band}.")
        for band in range(BANDS)
    ),
    *(
        Series(f"b{band}_oldest_ms", "ms", f"How long the first topic of band B{band} has waited.")
        for band in range(BANDS)
    ),
    Series("log_depth", "operations", "Operations that wait for the log."),
    Series("log_waiting_bytes", "bytes", "Bytes that wait for the log."),
    Series("streams", "streams", "Open push streams."),
    Series("watchers_behind", "connections", "Connections that do not read what they were sent."),
    Series("refused", "1/s", "Writes refused for lack of room or time."),
    Series("loop_lag_ms", "ms", "How late the sampler itself was called."),
)
"""Every series of the sampler, in order."""

PLACES: Final = {series.name: place for place, series in enumerate(SERIES)}
"""Which column of the sampler a series is."""


TOPIC_SERIES: Final = ("in", "out", "push_p99_ms")
"""The series of a topic: records a second written to it, and given to its readers; and for its
pushes, the time from when the first record of each was written until a watcher was sent it."""
QUEUE_SERIES: Final = ("in", "out", "ready", "leased")
"""The series of a queue: also its jobs by state."""
TOPICS_FOLLOWED: Final = 32
"""How many topics have a history: those that are looked at, and the busy ones."""


class History(NamedTuple):
    """Series as columns, oldest first; None where there was nothing to measure.

    `t` is the end of each step in ms since the epoch. By the minute, `in` is the mean, and the
    columns `in_min` and `in_max` are there as well.
    """

    step: str
    t: list[int]
    columns: dict[str, list[float | None]]

    def members(self) -> dict[str, Any]:
        """As on the wire: the columns are members of the answer itself."""
        return {"step": self.step, "t": self.t, **self.columns}

    @classmethod
    def of(cls, members: dict[str, Any]) -> History:
        """The reverse of `members`."""
        columns = {name: found for name, found in members.items() if isinstance(found, list)}
        return cls(members["step"], columns.pop("t"), columns)


class HistoryAnswer(Struct, frozen=True, kw_only=True):
    """Times, oldest first. Each series is a further member: a list as long as `t`."""

    step: str
    t: list[int]
    performance: dict[str, float] = {}


def parse_series(text: str | None) -> list[str]:
    """The series of a request, joined by commas; all of them if none is named."""
    names = list(dict.fromkeys(filter(None, (text or "").split(","))))
    for name in names:
        if name not in PLACES:
            near = get_close_matches(name, PLACES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(PLACES)}"
            raise InvalidRequest(f"there is no series {name!r}: {hint}")
    return names or list(PLACES)
