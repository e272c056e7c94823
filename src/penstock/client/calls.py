"""Every call of the protocol as data: its request, its decoder, whether it can be repeated.

>>> call = get_topic("meters:7")
>>> call.request.method, call.request.target, call.repeatable
('GET', '/v0/topics/meters:7?touch=true', True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.errors import NotPenstock
from penstock.client.records import encode_records
from penstock.client.wire import Answer, HttpRequest
from penstock.protocol import answers
from penstock.protocol.config import config_fields
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.routes import ARROW

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

AUTO_KEY: Final = "<generated>"
"""As an idempotency key: the client generates one, so that the write can be sent again safely."""
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how to decode its answer.

    `repeatable`: idempotent. `probes`: a failure is the answer, so it is not retried. `wait_ms` is
    how long the server was asked to wait before it answers.
    """

    request: HttpRequest
    read: Callable[[Answer], T]
    repeatable: bool = True
    idempotency_key: str | None = None
    probes: bool = False
    wait_ms: int = 0


# Topics ---------------------------------------------------------------------------------------


def put_topic(topic: str, options: Mapping[str, Any]) -> Call[answers.TopicPut]:
    """Create a topic, or change the named options of an existing one."""
    request = HttpRequest("PUT", _topic(topic), _json(known_options(options)))
    return Call(request, reads(answers.TopicPut))


def known_options(options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Options of a topic, each known.

    The server ignores unknown ones, so a typo would go unnoticed.
    """
    for name in options or ():
        known = config_fields()
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(known))
            raise InvalidRequest(f"expected a known option of a topic, found {name}: {hint}")
    return options


def get_topic(topic: str, *, touch: bool = True) -> Call[answers.TopicState]:
    """Show a topic."""
    request = HttpRequest("GET", _topic(topic) + query_text(touch=touch))
    return Call(request, reads(answers.TopicState))


def list_topics(
    prefix: str = "", *, page_size: int = 1_000, cursor: str | None = None, touch: bool = False
) -> Call[answers.TopicPage]:
    """One page of the topics whose names begin with a prefix."""
    query = query_text(
        prefix=prefix or None, page_size=page_size, cursor=cursor, touch=touch or None
    )
    return Call(HttpRequest("GET", "/v0/topics" + query), reads(answers.TopicPage))


def delete_topic(topic: str, *, if_empty: bool = False) -> Call[answers.TopicDeletion]:
    """Delete a topic and the routers at it."""
    request = HttpRequest("DELETE", _topic(topic) + query_text(if_empty=if_empty or None))
    return Call(request, reads(answers.TopicDeletion))


def write(
    topic: str,
    records: Iterable[object],
    *,
    idempotency_key: str | None,
    return_seqs: bool = True,
    config: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Call[answers.Written]:
    """Append records, all or none."""
    fields["config"] = known_options(config)
    body = write_body(encode_records(records), idempotency_key=idempotency_key, **fields)
    return write_encoded(topic, body, idempotency_key=idempotency_key, return_seqs=return_seqs)


def write_encoded(
    topic: str, body: bytes, *, idempotency_key: str | None, return_seqs: bool
) -> Call[answers.Written]:
    """Append records that are already encoded as a request's body."""
    target = _topic(topic) + ("" if return_seqs else "?return_seqs=false")
    return Call(
        HttpRequest("POST", target, body),
        reads(answers.Written),
        repeatable=idempotency_key is not None,
        idempotency_key=idempotency_key,
    )


def write_body(records: bytes, **fields: Any) -> bytes:
    """The body of a write: its fields, and an array of encoded records."""
    head = _json(_present(fields))
    return b'%b%b"records":%b}' % (head[:-1], b"," if len(head) > 2 else b"", records)


def write_many(
    writes: Mapping[str, Iterable[object]], *, idempotency_key: str | None, **fields: Any
) -> Call[list[answers.Written]]:
    """Append to several topics of one partition in one commit: all or none."""
    bodies = [
        write_body(encode_records(records), topic=topic, idempotency_key=idempotency_key, **fields)
        for topic, records in writes.items()
    ]
    return Call(
        HttpRequest("POST", "/v0/write", b'{"writes":[%b]}' % b",".join(bodies)),
        _read_many,
        repeatable=idempotency_key is not None,
        idempotency_key=idempotency_key,
    )


def diff(
    topic: str, *, from_ts: int | None = None, wait_ms: int = 0, **fields: Any
) -> Call[answers.Diff]:
    """One page of the records after a cursor, or from a time on."""
    request = _diff_request(topic, from_ts, wait_ms, fields)
    return Call(request, reads(answers.Diff), wait_ms=wait_ms)


def diff_arrow(
    topic: str, *, from_ts: int | None = None, wait_ms: int = 0, lz4: bool = True, **fields: Any
) -> Call[bytes]:
    """One page of the records after a cursor, or from a time on, as an Arrow stream."""
    request = _diff_request(topic, from_ts, wait_ms, fields)
    accepted = f"{ARROW};compression=lz4" if lz4 else ARROW
    request = request._replace(headers=f"Accept: {accepted}\r\n")
    return Call(request, _read_arrow, wait_ms=wait_ms)


def delete_records(
    topic: str, *, before_seq: int | None = None, match: str | Sequence[str] | None = None
) -> Call[answers.RecordDeletion]:
    """Delete records before a seq, with a matching tag, or both."""
    body = _json(_present({"before_seq": before_seq, "match": match}))
    return Call(HttpRequest("POST", _topic(topic) + "/delete", body), reads(answers.RecordDeletion))


# Routers --------------------------------------------------------------------------------------


def put_router(router: str, fields: Mapping[str, Any]) -> Call[answers.RouterPut]:
    """Create a router, or change its mutable fields."""
    return Call(HttpRequest("PUT", _router(router), _json(fields)), reads(answers.RouterPut))


def get_router(router: str) -> Call[answers.RouterState]:
    """Show a router."""
    return Call(HttpRequest("GET", _router(router)), reads(answers.RouterState))


def list_routers(
    prefix: str = "",
    *,
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 1_000,
    cursor: str | None = None,
) -> Call[answers.RouterPage]:
    """One page of routers."""
    query = query_text(
        prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor
    )
    return Call(HttpRequest("GET", "/v0/routers" + query), reads(answers.RouterPage))


def delete_router(router: str) -> Call[answers.RouterDeletion]:
    """Delete a router."""
    return Call(HttpRequest("DELETE", _router(router)), reads(answers.RouterDeletion))


# Queues ---------------------------------------------------------------------------------------


def claim(topic: str, node: str, *, count: int, lease_ms: int | None) -> Call[answers.Claims]:
    """Lease jobs. Not repeatable: jobs of a lost answer stay leased until their lease ends."""
    body = _json(_present({"node": node, "max": count, "lease_ms": lease_ms}))
    request = HttpRequest("POST", _topic(topic) + "/claim", body)
    return Call(request, reads(answers.Claims), repeatable=False)


Jobs = Sequence["int | answers.ClaimedJob"]
"""Jobs to settle: claimed jobs, or seqs alone (without the proof of the lease)."""


def ack(topic: str, node: str, jobs: Jobs) -> Call[answers.Acked]:
    """Mark jobs as done."""
    return Call(_settle(topic, "ack", node, jobs), reads(answers.Acked))


def nack(topic: str, node: str, jobs: Jobs, *, delay_ms: int) -> Call[answers.Nacked]:
    """Return jobs to the queue."""
    return Call(_settle(topic, "nack", node, jobs, delay_ms=delay_ms), reads(answers.Nacked))


def extend(topic: str, node: str, jobs: Jobs, *, lease_ms: int) -> Call[answers.Extended]:
    """Extend the leases of jobs."""
    return Call(_settle(topic, "extend", node, jobs, lease_ms=lease_ms), reads(answers.Extended))


def work_request(topic: str, node: str, *, count: int, lease_ms: int | None) -> HttpRequest:
    """Open a stream of jobs."""
    query = query_text(node=node, max=count, lease_ms=lease_ms)
    return HttpRequest("GET", f"{_topic(topic)}/work{query}", headers=_EVENTS)


# Watch ----------------------------------------------------------------------------------------


def create_watch(body: Mapping[str, Any], *, lenient: bool) -> Call[dict[str, Any]]:
    """Create a watch session."""
    request = HttpRequest("POST", "/v0/watch" + query_text(lenient=lenient or None), _json(body))
    return Call(request, _read_any, probes=True)


def watch_request(wid: str) -> HttpRequest:
    """Open the stream of a watch session."""
    return HttpRequest("GET", f"/v0/watch/{quote(wid, safe='')}", headers=_EVENTS)


_EVENTS: Final = "Accept: text/event-stream\r\n"


# Server ---------------------------------------------------------------------------------------


def health() -> Call[answers.Health]:
    """Whether the server answers."""
    return Call(HttpRequest("GET", "/v0/health"), reads(answers.Health), probes=True)


def ready() -> Call[answers.Ready]:
    """Whether the server takes requests."""
    return Call(HttpRequest("GET", "/v0/ready"), reads(answers.Ready), probes=True)


def metrics() -> Call[dict[str, Any]]:
    """The server's counters."""
    request = HttpRequest("GET", "/v0/metrics", headers="Accept: application/json\r\n")
    return Call(request, _read_any)


def scheduler(topic: str | None = None) -> Call[dict[str, Any]]:
    """What the scheduler is doing, for the server or for one topic."""
    return Call(HttpRequest("GET", "/v0/scheduler" + query_text(topic=topic)), _read_any)


def ingest_status() -> Call[dict[str, Any]]:
    """The stages of an ingest edge, from its status port."""
    return Call(HttpRequest("GET", "/status"), _read_any, probes=True)


def backup(directory: str, *, wait_ms: int) -> Call[answers.BackupMade]:
    """Copy everything. Not retried: a second try would find the directory in use."""
    request = HttpRequest("POST", "/v0/backup", _json({"directory": directory}))
    return Call(request, reads(answers.BackupMade), probes=True, wait_ms=wait_ms)


# The next pages ------------------------------------------------------------------------------


def after_topics(
    page: answers.TopicPage, prefix: str, page_size: int
) -> Call[answers.TopicPage] | None:
    """The call for the next page of topics."""
    if page.next_cursor is None:
        return None
    return list_topics(prefix, page_size=page_size, cursor=page.next_cursor)


def after_routers(
    page: answers.RouterPage, prefix: str, **fields: Any
) -> Call[answers.RouterPage] | None:
    """The call for the next page of routers."""
    if page.next_cursor is None:
        return None
    return list_routers(prefix, cursor=page.next_cursor, **fields)


def after_diff(page: answers.Diff, **fields: Any) -> Call[answers.Diff] | None:
    """The call for the next page of records, until the reader has caught up."""
    if page.caught_up:
        return None
    return diff(page.topic, from_seq=page.next_from_seq, epoch=page.epoch, **fields)


# Building requests ----------------------------------------------------------------------------


def _topic(name: str) -> str:
    return f"/v0/topics/{quoted(name)}"


def _router(name: str) -> str:
    return f"/v0/routers/{quoted(name)}"


def quoted(name: str) -> str:
    """A name, escaped for a path."""
    if not name:
        raise InvalidRequest("expected a name, found an empty one")
    return quote(name, safe=":")


def query_text(**fields: Any) -> str:
    """The fields that are not None, as the query of a target."""
    present = {key: _text(value) for key, value in fields.items() if value is not None}
    return f"?{urlencode(present)}" if present else ""


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _json(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"expected fields that can be JSON, found {error}") from error


def _diff_request(
    topic: str, from_ts: int | None, wait_ms: int, fields: Mapping[str, Any]
) -> HttpRequest:
    body = _json(_present({**fields, "wait_ms": wait_ms or None}))
    return HttpRequest("POST", f"{_topic(topic)}/diff{query_text(from_ts=from_ts)}", body)


def _settle(topic: str, verb: str, node: str, jobs: Jobs, **fields: Any) -> HttpRequest:
    seqs = [job if isinstance(job, int) else job.seq for job in jobs]
    leases = ["" if isinstance(job, int) else job.lease_id for job in jobs]
    if any(leases):
        fields["lease_ids"] = leases
    body = _json({"node": node, "seqs": seqs, **fields})
    return HttpRequest("POST", f"{_topic(topic)}/{verb}", body)


# Decoding answers -----------------------------------------------------------------------------

_READERS: Final[dict[type[Any], Callable[[Answer], Any]]] = {}


def reads(kind: type[T]) -> Callable[[Answer], T]:
    """A decoder for answers of a type; cached."""
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS[kind] = _reader(kind)
    return reader


def _reader(kind: type[T]) -> Callable[[Answer], T]:
    decoder = msgspec.json.Decoder(kind)

    def read(answer: Answer) -> T:
        try:
            return decoder.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(
                f"expected an answer of the /v0 protocol, found {answer.body[:80]!r}: {error}",
                status=answer.status,
            ) from error

    return read


def _read_any(answer: Answer) -> dict[str, Any]:
    return reads(dict[str, Any])(answer)


class _Many(msgspec.Struct):
    writes: list[answers.Written]


def _read_many(answer: Answer) -> list[answers.Written]:
    return reads(_Many)(answer).writes


def _read_arrow(answer: Answer) -> bytes:
    found = answer.headers.get("content-type", "nothing")
    if not found.startswith(ARROW):
        raise NotPenstock(f"expected an answer of type {ARROW}, found {found}")
    return answer.body


def arrow_table(body: bytes) -> pa.Table:
    """An Arrow stream as a table. The other fields of a page are its schema's metadata.

    The table's columns refer to the body: nothing is copied.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return reader.read_all()
    except pa.ArrowInvalid as error:
        raise NotPenstock(f"expected an Arrow stream, found {body[:40]!r}") from error
