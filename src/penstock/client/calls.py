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
from penstock.client.wire import HttpAnswer, HttpRequest
from penstock.protocol import answers, lake_answers, part_answers, requests
from penstock.protocol.config import config_fields
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.queues import REASON_BYTES_MAX, Discarded, Redriven
from penstock.protocol.routes import ARROW

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

AUTO_KEY: Final = "<generated>"
"""As an idempotency key: the client generates one, so that the write can be sent again safely."""
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request and how to decode its answer.

    `repeatable`: idempotent. `probes`: a failure is the answer, so it is not retried. `wait_ms` is
    how long the server was asked to wait before it answers. `only_reads`: it is sent with a body,
    but changes nothing.
    """

    request: HttpRequest
    read: Callable[[HttpAnswer], T]
    repeatable: bool = True
    idempotency_key: str | None = None
    probes: bool = False
    wait_ms: int = 0
    only_reads: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something: then its failures are definite or unknown."""
        return self.request.method != "GET" and not self.only_reads


# Topics ---------------------------------------------------------------------------------------


def put_topic(topic: str, options: Mapping[str, Any]) -> ApiCall[answers.TopicPut]:
    """Create a topic, or change the named options of an existing one."""
    request = HttpRequest("PUT", _topic(topic), _json(known_options(options)))
    return ApiCall(request, reads(answers.TopicPut))


def known_options(options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Options of a topic, each known.

    The server ignores unknown ones, so a typo would go unnoticed.
    """
    for name in options or ():
        known = config_fields()
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(known))
            raise InvalidRequest(f"topics have no option {name!r}: {hint}")
    return options


def get_topic(topic: str, *, touch: bool = True) -> ApiCall[answers.TopicState]:
    """Show a topic."""
    request = HttpRequest("GET", _topic(topic) + query_text(touch=touch))
    return ApiCall(request, reads(answers.TopicState))


def list_topics(
    prefix: str = "",
    *,
    page_size: int = 1_000,
    cursor: str | None = None,
    sort: str | None = None,
    type: str | None = None,  # noqa: A002  # the protocol's word
) -> ApiCall[answers.TopicPage]:
    """One page of the topics whose names begin with a prefix."""
    query = query_text(
        prefix=prefix or None, page_size=page_size, cursor=cursor, sort=sort, type=type
    )
    return ApiCall(HttpRequest("GET", "/v0/topics" + query), reads(answers.TopicPage))


def delete_topic(topic: str, *, if_empty: bool = False) -> ApiCall[answers.TopicDeletion]:
    """Delete a topic and the routers at it."""
    request = HttpRequest("DELETE", _topic(topic) + query_text(if_empty=if_empty or None))
    return ApiCall(request, reads(answers.TopicDeletion))


def write(
    topic: str,
    records: Iterable[object],
    *,
    idempotency_key: str | None,
    return_seqs: bool = True,
    config: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ApiCall[answers.Written]:
    """Append records, all or none."""
    fields["config"] = known_options(config)
    body = write_body(encode_records(records), idempotency_key=idempotency_key, **fields)
    return write_encoded(topic, body, idempotency_key=idempotency_key, return_seqs=return_seqs)


def write_encoded(
    topic: str, body: bytes, *, idempotency_key: str | None, return_seqs: bool
) -> ApiCall[answers.Written]:
    """Append records that are already encoded as a request's body."""
    target = _topic(topic) + ("" if return_seqs else "?return_seqs=false")
    return ApiCall(
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
) -> ApiCall[list[answers.TopicWritten]]:
    """Append to several topics of one partition in one commit: all or none."""
    bodies = [
        write_body(encode_records(records), topic=topic, idempotency_key=idempotency_key, **fields)
        for topic, records in writes.items()
    ]
    return ApiCall(
        HttpRequest("POST", "/v0/write", b'{"writes":[%b]}' % b",".join(bodies)),
        _read_many,
        repeatable=idempotency_key is not None,
        idempotency_key=idempotency_key,
    )


def diff(
    topic: str, *, from_ts: int | None = None, wait_ms: int = 0, **fields: Any
) -> ApiCall[answers.Diff]:
    """One page of the records after a cursor, or from a time on."""
    request = _diff_request(topic, from_ts, wait_ms, fields)
    return ApiCall(request, reads(answers.Diff), wait_ms=wait_ms, only_reads=True)


def diff_arrow(
    topic: str, *, from_ts: int | None = None, wait_ms: int = 0, lz4: bool = True, **fields: Any
) -> ApiCall[bytes]:
    """One page of the records after a cursor, or from a time on, as an Arrow stream."""
    request = _diff_request(topic, from_ts, wait_ms, fields)
    accepted = f"{ARROW};compression=lz4" if lz4 else ARROW
    request = request._replace(headers=f"Accept: {accepted}\r\n")
    return ApiCall(request, read_arrow, wait_ms=wait_ms, only_reads=True)


def delete_records(
    topic: str, *, before_seq: int | None = None, match: str | Sequence[str] | None = None
) -> ApiCall[answers.RecordDeletion]:
    """Delete records before a seq, with a matching tag, or both."""
    body = _json(requests.DeleteBody(before_seq=before_seq, match=match))
    return ApiCall(
        HttpRequest("POST", _topic(topic) + "/delete", body), reads(answers.RecordDeletion)
    )


# Routers --------------------------------------------------------------------------------------


def put_router(router: str, body: requests.RouterBody) -> ApiCall[answers.RouterPut]:
    """Create a router, or change its mutable fields."""
    return ApiCall(HttpRequest("PUT", _router(router), _json(body)), reads(answers.RouterPut))


def get_router(router: str) -> ApiCall[answers.RouterState]:
    """Show a router."""
    return ApiCall(HttpRequest("GET", _router(router)), reads(answers.RouterState))


def list_routers(
    prefix: str = "",
    *,
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 1_000,
    cursor: str | None = None,
) -> ApiCall[answers.RouterPage]:
    """One page of routers."""
    query = query_text(
        prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor
    )
    return ApiCall(HttpRequest("GET", "/v0/routers" + query), reads(answers.RouterPage))


def delete_router(router: str) -> ApiCall[answers.RouterDeletion]:
    """Delete a router."""
    return ApiCall(HttpRequest("DELETE", _router(router)), reads(answers.RouterDeletion))


# Queues ---------------------------------------------------------------------------------------


def claim(topic: str, node: str, *, count: int, lease_ms: int | None) -> ApiCall[answers.Claims]:
    """Lease jobs. Not repeatable: jobs of a lost answer stay leased until their lease ends."""
    body = _json(requests.ClaimBody(node=node, max=count, lease_ms=lease_ms))
    request = HttpRequest("POST", _topic(topic) + "/claim", body)
    return ApiCall(request, reads(answers.Claims), repeatable=False)


Jobs = Sequence["int | answers.ClaimedJob"]
"""Jobs to settle: claimed jobs, or seqs alone (without the proof of the lease)."""


def ack(topic: str, node: str, jobs: Jobs) -> ApiCall[answers.Acked]:
    """Mark jobs as done."""
    body = requests.AckBody(node=node, seqs=_seqs(jobs), lease_ids=_lease_ids(jobs))
    return ApiCall(HttpRequest("POST", _topic(topic) + "/ack", _json(body)), reads(answers.Acked))


def nack(
    topic: str, node: str, jobs: Jobs, *, delay_ms: int, reason: str = ""
) -> ApiCall[answers.Nacked]:
    """Return jobs to the queue."""
    body = requests.NackBody(
        node=node,
        seqs=_seqs(jobs),
        lease_ids=_lease_ids(jobs),
        delay_ms=delay_ms,
        reason=reason,
    )
    return ApiCall(HttpRequest("POST", _topic(topic) + "/nack", _json(body)), reads(answers.Nacked))


def extend(topic: str, node: str, jobs: Jobs, *, lease_ms: int) -> ApiCall[answers.Extended]:
    """Extend the leases of jobs."""
    body = requests.ExtendBody(
        node=node, seqs=_seqs(jobs), lease_ids=_lease_ids(jobs), lease_ms=lease_ms
    )
    return ApiCall(
        HttpRequest("POST", _topic(topic) + "/extend", _json(body)), reads(answers.Extended)
    )


def error_reason(error: BaseException) -> str:
    """Why a job was not finished, as its worker's error tells it; cut to what a nack may carry.

    >>> error_reason(KeyError("meter"))
    "KeyError: 'meter'"
    """
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    encoded = text.encode("utf-8", "replace")[:REASON_BYTES_MAX]
    return encoded.decode("utf-8", "ignore")


def redrive(
    queue: str,
    *,
    seqs: Sequence[int] | None = None,
    reason: str | None = None,
    everything: bool = False,
    to: str | None = None,
) -> ApiCall[Redriven]:
    """Make dead letters jobs again."""
    chosen = None if seqs is None else [*seqs]
    body = requests.RedriveBody(seqs=chosen, reason=reason, all=everything, to=to)
    target = f"/v0/queues/{quoted(queue)}/redrive"
    return ApiCall(HttpRequest("POST", target, _json(body)), reads(Redriven))


def discard_letters(
    queue: str,
    *,
    seqs: Sequence[int] | None = None,
    reason: str | None = None,
    everything: bool = False,
) -> ApiCall[Discarded]:
    """Delete dead letters."""
    chosen = None if seqs is None else [*seqs]
    body = requests.LettersBody(seqs=chosen, reason=reason, all=everything)
    target = f"/v0/queues/{quoted(queue)}/discard"
    return ApiCall(HttpRequest("POST", target, _json(body)), reads(Discarded))


def work_request(topic: str, node: str, *, count: int, lease_ms: int | None) -> HttpRequest:
    """Open a stream of jobs."""
    query = query_text(node=node, max=count, lease_ms=lease_ms)
    return HttpRequest("GET", f"{_topic(topic)}/work{query}", headers=_EVENTS)


# Watch ----------------------------------------------------------------------------------------


def create_watch(body: requests.WatchBody, *, lenient: bool) -> ApiCall[dict[str, Any]]:
    """Create a watch session, which expires by itself if its answer is lost."""
    request = HttpRequest("POST", "/v0/watch" + query_text(lenient=lenient or None), _json(body))
    return ApiCall(request, _read_any, probes=True, only_reads=True)


def watch_request(wid: str) -> HttpRequest:
    """Open the stream of a watch session."""
    return HttpRequest("GET", f"/v0/watch/{quote(wid, safe='')}", headers=_EVENTS)


_EVENTS: Final = "Accept: text/event-stream\r\n"


# Server ---------------------------------------------------------------------------------------


def health() -> ApiCall[answers.Health]:
    """Whether the server answers."""
    return ApiCall(HttpRequest("GET", "/v0/health"), reads(answers.Health), probes=True)


def ready() -> ApiCall[answers.Ready]:
    """Whether the server takes requests."""
    return ApiCall(HttpRequest("GET", "/v0/ready"), reads(answers.Ready), probes=True)


def metrics() -> ApiCall[dict[str, Any]]:
    """The server's counters."""
    request = HttpRequest("GET", "/v0/metrics", headers="Accept: application/json\r\n")
    return ApiCall(request, _read_any)


def scheduler(topic: str | None = None) -> ApiCall[dict[str, Any]]:
    """What the scheduler is doing, for the server or for one topic."""
    return ApiCall(HttpRequest("GET", "/v0/scheduler" + query_text(topic=topic)), _read_any)


def verdict() -> ApiCall[part_answers.Verdict]:
    """How things stand."""
    return ApiCall(HttpRequest("GET", "/v0/verdict"), reads(part_answers.Verdict))


def waiting() -> ApiCall[part_answers.WaitingList]:
    """Everything that waits."""
    return ApiCall(HttpRequest("GET", "/v0/waiting"), reads(part_answers.WaitingList))


def parts() -> ApiCall[part_answers.PartList]:
    """Which parts run where."""
    return ApiCall(HttpRequest("GET", "/v0/parts"), reads(part_answers.PartList))


def pipeline(part: str | None = None) -> ApiCall[part_answers.PipelineState]:
    """The ingest pipeline."""
    request = HttpRequest("GET", "/v0/pipeline" + query_text(part=part))
    return ApiCall(request, reads(part_answers.PipelineState))


def pipeline_history(
    part: str | None = None, since: int | None = None
) -> ApiCall[part_answers.PipelineHistory]:
    """The ingest pipeline over time."""
    request = HttpRequest("GET", "/v0/pipeline/history" + query_text(part=part, since=since))
    return ApiCall(request, reads(part_answers.PipelineHistory))


def switch_stage(
    stage: str, action: str, part: str | None = None
) -> ApiCall[part_answers.StageSwitched]:
    """Hold a stage of the ingest pipeline, or let it go on. Idempotent."""
    path = f"/v0/pipeline/stages/{quoted(stage)}/{action}" + query_text(part=part)
    return ApiCall(HttpRequest("POST", path), reads(part_answers.StageSwitched))


def graph() -> ApiCall[lake_answers.Graph]:
    """What reads what."""
    return ApiCall(HttpRequest("GET", "/v0/graph"), reads(lake_answers.Graph))


def ingest_status() -> ApiCall[dict[str, Any]]:
    """The stages of an ingest edge, from its status port."""
    return ApiCall(HttpRequest("GET", "/status"), _read_any, probes=True)


def backup(directory: str, *, wait_ms: int) -> ApiCall[answers.BackupMade]:
    """Copy everything. Not retried: a second try would find the directory in use."""
    request = HttpRequest("POST", "/v0/backup", _json(requests.BackupBody(directory=directory)))
    return ApiCall(request, reads(answers.BackupMade), probes=True, wait_ms=wait_ms)


# The next pages ------------------------------------------------------------------------------


def after_topics(
    page: answers.TopicPage, prefix: str, **fields: Any
) -> ApiCall[answers.TopicPage] | None:
    """The call for the next page of topics."""
    if page.next_cursor is None:
        return None
    return list_topics(prefix, cursor=page.next_cursor, **fields)


def after_routers(
    page: answers.RouterPage, prefix: str, **fields: Any
) -> ApiCall[answers.RouterPage] | None:
    """The call for the next page of routers."""
    if page.next_cursor is None:
        return None
    return list_routers(prefix, cursor=page.next_cursor, **fields)


def after_diff(page: answers.Diff, **fields: Any) -> ApiCall[answers.Diff] | None:
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
        raise InvalidRequest("the name is empty")
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
        raise InvalidRequest(f"the request cannot be encoded as JSON: {error}") from error


def _diff_request(
    topic: str, from_ts: int | None, wait_ms: int, fields: Mapping[str, Any]
) -> HttpRequest:
    body = _json(requests.DiffBody(**_present(fields), wait_ms=wait_ms))
    return HttpRequest("POST", f"{_topic(topic)}/diff{query_text(from_ts=from_ts)}", body)


def _seqs(jobs: Jobs) -> list[int]:
    return [job if isinstance(job, int) else job.seq for job in jobs]


def _lease_ids(jobs: Jobs) -> list[str] | None:
    leases = ["" if isinstance(job, int) else job.lease_id for job in jobs]
    return leases if any(leases) else None


# Decoding answers -----------------------------------------------------------------------------

_READERS: Final[dict[type[Any], Callable[[HttpAnswer], Any]]] = {}


def reads(kind: type[T]) -> Callable[[HttpAnswer], T]:
    """A decoder for answers of a type; cached."""
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS[kind] = _reader(kind)
    return reader


def _reader(kind: type[T]) -> Callable[[HttpAnswer], T]:
    decoder = msgspec.json.Decoder(kind)

    def read(answer: HttpAnswer) -> T:
        try:
            return decoder.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(
                f"the answer does not follow the /v0 protocol: {error}: {answer.body[:80]!r}",
                status=answer.status,
            ) from error

    return read


def _read_any(answer: HttpAnswer) -> dict[str, Any]:
    return reads(dict[str, Any])(answer)


def _read_many(answer: HttpAnswer) -> list[answers.TopicWritten]:
    return reads(answers.WrittenMany)(answer).writes


def read_arrow(answer: HttpAnswer) -> bytes:
    """The Arrow stream of an answer."""
    found = answer.headers.get("content-type", "nothing")
    if not found.startswith(ARROW):
        raise NotPenstock(f"the server answered with {found} instead of {ARROW}")
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
        raise NotPenstock(f"the answer is not an Arrow stream: {body[:40]!r}") from error
