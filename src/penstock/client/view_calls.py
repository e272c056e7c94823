"""Calls that look at the server itself: its history, its events, its queues.

>>> history(["in", "refused"], step="1m").request.target
'/v0/history?series=in%2Crefused&step=1m'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.calls import ApiCall, query_text, quoted, read_arrow, reads
from penstock.client.errors import NotPenstock
from penstock.client.wire import HttpAnswer, HttpRequest
from penstock.protocol.history import History
from penstock.protocol.queues import QueueState
from penstock.protocol.routes import ARROW
from penstock.protocol.server_events import EventPage
from penstock.protocol.watchers import TopicPartition, TopicWatchers


def history(
    series: Iterable[str] = (), *, step: str = "1s", since_ms: int | None = None
) -> ApiCall[History]:
    """Series of the server over time, as columns."""
    return ApiCall(_history_request(series, step, since_ms), _read_history)


def history_arrow(
    series: Iterable[str] = (), *, step: str = "1s", since_ms: int | None = None
) -> ApiCall[bytes]:
    """Series of the server over time, as an Arrow stream."""
    request = _history_request(series, step, since_ms)
    return ApiCall(request._replace(headers=f"Accept: {ARROW}\r\n"), read_arrow)


def events(
    *, after_id: int = 0, limit: int | None = None, kind: str | None = None
) -> ApiCall[EventPage]:
    """The last things that happened."""
    query = query_text(after_id=after_id or None, limit=limit, kind=kind)
    return ApiCall(HttpRequest("GET", "/v0/events" + query), reads(EventPage))


def queue(name: str) -> ApiCall[QueueState]:
    """A queue: its jobs by state, its workers, its dead letters."""
    return ApiCall(HttpRequest("GET", f"/v0/queues/{quoted(name)}"), reads(QueueState))


def topic_watchers(topic: str, *, limit: int | None = None) -> ApiCall[TopicWatchers]:
    """The readers of a topic, and how far each has come."""
    target = f"/v0/topics/{quoted(topic)}/watchers{query_text(limit=limit)}"
    return ApiCall(HttpRequest("GET", target), reads(TopicWatchers))


def topic_partition(topic: str) -> ApiCall[TopicPartition]:
    """Of which log partition a topic is, and what waits there."""
    target = f"/v0/topics/{quoted(topic)}/partitions"
    return ApiCall(HttpRequest("GET", target), reads(TopicPartition))


def _history_request(series: Iterable[str], step: str, since_ms: int | None) -> HttpRequest:
    query = query_text(series=",".join(series) or None, step=step, since=since_ms)
    return HttpRequest("GET", "/v0/history" + query)


def _read_history(answer: HttpAnswer) -> History:
    members = reads(dict[str, Any])(answer)
    try:
        return History.of(members)
    except KeyError as error:
        raise NotPenstock(f"the answer has no member {error}", status=answer.status) from error
