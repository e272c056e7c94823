"""Handlers of what the server remembers of itself: its numbers over time, and events."""

from __future__ import annotations

from typing import Any, Final

from penstock.protocol.errors import TopicNotFound
from penstock.protocol.history import STEPS, History, HistoryAnswer, parse_series
from penstock.protocol.routes import ARROW, NUMBER, READ, TEXT, Param
from penstock.protocol.server_events import EVENTS_KEPT, EventPage
from penstock.protocol.values import parse_choice
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.columns import load_arrow
from penstock.server.api.queries import wants_arrow
from penstock.server.http.message import Answer

_RANGE: Final = (
    Param(
        "step",
        {"type": "string", "enum": list(STEPS)},
        "`1s`: the last 15 minutes by the second. `1m`: the last 24 hours by the minute.",
    ),
    Param("since", NUMBER, "Only what is later than this, in ms since the epoch."),
)


@ROUTES.get(
    "/v0/history",
    answer=HistoryAnswer,
    scope=READ,
    query=(
        Param("series", TEXT, "Names of series, joined by commas; all if not said."),
        *_RANGE,
    ),
    also=(ARROW,),
)
async def show_history(call: Call) -> Answer:
    """The server's own numbers over time, as columns. As Arrow if that is accepted."""
    query = call.query
    names = parse_series(query.text("series"))
    step = parse_choice("step", query.text("step") or STEPS[0], STEPS)
    return await _told(call, call.context.sampler.history(names, step, query.number("since", 0)))


@ROUTES.get(
    "/v0/topics/{name}/history",
    answer=HistoryAnswer,
    scope=READ,
    named="topic",
    query=_RANGE,
    errors=(TopicNotFound,),
    also=(ARROW,),
)
async def show_topic_history(call: Call) -> Answer:
    """How busy a topic was: records a second `in` and `out`; of a queue also `ready`, `leased`.

    `push_p99_ms` is how late its watchers had what was written, in whole milliseconds: null where
    nothing was pushed, and while the topic was not looked at. The server follows 32 topics, those
    that are looked at and the busiest, as columns over time. A topic that was not followed begins
    to be with the first request.
    """
    query = call.query
    step = parse_choice("step", query.text("step") or STEPS[0], STEPS)
    series = call.context.topic_series
    return await _told(call, series.history(call.name, step, query.number("since", 0)))


async def _told(call: Call, history: History) -> Answer:
    if wants_arrow(call.request.headers):
        await load_arrow()
        return Answer(200, history_arrow(history), ARROW.encode())
    return call.answer(**history.members())


@ROUTES.get(
    "/v0/events",
    answer=EventPage,
    scope=READ,
    query=(
        Param("after_id", NUMBER, "Only events after this one."),
        Param("limit", NUMBER, f"At most so many, 1 to {EVENTS_KEPT}; all if not said."),
        Param("kind", TEXT, "Only events of this kind."),
    ),
)
def show_events(call: Call) -> Answer:
    """The last things that happened, newest first; also as topic `penstock.events`."""
    query = call.query
    return call.tell(
        call.context.events.page(
            after_id=query.number("after_id", 0),
            limit=min(max(query.number("limit", EVENTS_KEPT), 1), EVENTS_KEPT),
            kind=query.text("kind") or None,
            reaches=call.reaches if call.is_bounded else None,
        )
    )


def history_arrow(history: History) -> bytes:
    """Series as an Arrow stream: `t` as a timestamp, then one column for each."""
    import pyarrow as pa

    columns: dict[str, Any] = {"t": pa.array(history.t, pa.timestamp("ms", "UTC"))}
    for name, values in history.columns.items():
        columns[name] = pa.array(values, pa.float64())
    table = pa.table(columns).replace_schema_metadata({"step": history.step})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body
