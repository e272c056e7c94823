"""Every error of the protocol, defined once: its code, HTTP status, class, group and outcome.

The server raises these classes; the client raises the same class again for the code in an answer.
`ERRORS` is the table that both use, and the reference is generated from it. `detail` holds exactly
what the protocol promises for the situation. `outcome` says whether a request that ended with the
error surely changed nothing.

>>> error = error_of(404, "topic_not_found", "there is none", {"topic": "t"})
>>> type(error).__name__, error.status, str(error), error.detail
('TopicNotFound', 404, 'there is none', {'topic': 't'})
>>> error_of(502).code, error_of(502).outcome.value
('internal', 'unknown')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Self

from penstock.kernel.errors import (
    Busy,
    Conflict,
    Corrupt,
    Gone,
    PenstockError,
    Rejected,
    Unavailable,
    Unknown,
)

ERRORS: Final[dict[str, type[CallError]]] = {}
"""The error classes by code. A subclass without its own code shares its parent's row."""


class Outcome(Enum):
    """What is known about the effect of a request that failed."""

    DEFINITE = "definite"
    """It changed nothing, and never will."""
    UNKNOWN = "unknown"
    """It may have taken effect, or may do so after a restart of the server."""


LEADER_HEADER: Final = "x-penstock-leader"
"""Where the node is that answered, or that is to be asked."""


class CallError(PenstockError):
    """The base of every error that a call of the protocol can end with, on either side.

    `status` is that of the answer; 0 if there was no answer. A class with a `code` and a `status`
    is part of the protocol; one without a status exists only in the client.
    """

    status: int = 0
    retry_after_ms: int | None = None
    """How long to wait before the next try, if the server said so."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Headers that this error adds to the answer."""
    outcome: Outcome = Outcome.DEFINITE
    """Whether this request surely had no effect. It says nothing about earlier tries."""

    def __init_subclass__(cls, *, code: str = "", status: int = 0) -> None:
        super().__init_subclass__()
        if code:
            cls.code = code
        if status:
            cls.status = status
            ERRORS[code] = cls

    def __init__(self, message: str, *, status: int = 0, **detail: Any) -> None:
        super().__init__(message, **detail)
        if status:
            self.status = status

    @classmethod
    def told(
        cls, message: str, detail: Mapping[str, Any] | None = None, *, status: int = 0
    ) -> Self:
        """The error from an answer, whatever arguments the class usually takes."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.message = message
        error.detail = dict(detail or {})
        error.status = status or cls.status
        error.retry_after_ms = None
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take facts, copies the text: pickle must not call the constructor.
        return _copy, (type(self), self.message), self.__dict__


def _copy(kind: type[CallError], message: str) -> CallError:
    return kind.told(message)


def error_of(
    status: int, code: str = "", message: str = "", detail: Mapping[str, Any] | None = None
) -> CallError:
    """The error in an answer: by its code or, if that is unknown, by its status."""
    kind = ERRORS.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = Internal if status >= 500 else InvalidRequest
    return kind.told(message or code or f"the server answered {status}", detail, status=status)


# The request is wrong --------------------------------------------------------------------------


class InvalidRequest(CallError, Rejected, code="invalid_request", status=400):
    """A field, a name or a predicate is not what the protocol allows."""


class ReservedName(CallError, Rejected, code="reserved_name", status=400):
    """Names that begin with `penstock.` are the server's own."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} cannot be made: names that begin with 'penstock.' are the server's own",
            topic=name,
        )


class BatchTooLarge(CallError, Rejected, code="batch_too_large", status=400):
    """The request has more records or seqs than one request may have."""


class RecordTooLarge(CallError, Rejected, code="record_too_large", status=400):
    """A record is over the limit, or a write could not fit even into an empty topic."""


class InvalidJson(CallError, Rejected, code="invalid_json", status=400):
    """A WebSocket message is not JSON."""


class UnsupportedMessage(CallError, Rejected, code="unsupported_message", status=400):
    """A WebSocket message is binary; send text."""


class Unauthorized(CallError, Rejected, code="unauthorized", status=401):
    """The API key is missing or not known to the server."""

    headers = ((b"www-authenticate", b"Bearer"),)


class Forbidden(CallError, Rejected, code="forbidden", status=403):
    """The API key is known but does not allow this."""


class ForeignOrigin(Forbidden, code="foreign_origin", status=403):
    """A web page of another origin requests a change."""


class NotFound(CallError, Rejected, code="not_found", status=404):
    """There is no such route, or the watch session is gone."""


class MethodNotAllowed(CallError, Rejected, code="method_not_allowed", status=405):
    """The route does not take this method."""

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        methods = set(allowed)
        if "GET" in methods:
            methods.add("HEAD")
        allow = ", ".join(sorted(methods))
        super().__init__(f"this route does not take {method}: use {allow}")
        self.headers = ((b"allow", allow.encode()),)


class NotAcceptable(CallError, Rejected, code="not_acceptable", status=406):
    """The route cannot answer in a form that the client accepts."""


class PayloadTooLarge(CallError, Rejected, code="payload_too_large", status=413):
    """The body is over the server's limit."""


class UnsupportedMediaType(CallError, Rejected, code="unsupported_media_type", status=415):
    """The body is not declared to be JSON, or is encoded in an unknown way."""


class ForeignHost(CallError, Rejected, code="foreign_host", status=421):
    """A server without API keys does not answer under this host name: add it to `allowed_hosts`."""


# Topics ----------------------------------------------------------------------------------------


class TopicNotFound(CallError, Rejected, code="topic_not_found", status=404):
    """There is no topic with that name."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r}", topic=topic)


class TopicExistsIncompatible(CallError, Conflict, code="topic_exists_incompatible", status=409):
    """What exists cannot become what was asked for: its type, its feeder or its ends are fixed."""


class TopicsApart(TopicExistsIncompatible):
    """The topics of one atomic write are in different partitions."""

    def __init__(self, topic: str, other: str) -> None:
        super().__init__(
            f"topics {topic!r} and {other!r} are in different partitions: "
            "an atomic write needs one",
            topic=other,
            reason="topics_apart",
        )


class TopicNotEmpty(CallError, Conflict, code="topic_not_empty", status=409):
    """The topic was to be deleted only if empty, and is not empty."""

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(
            f"topic {topic!r} is not empty: it has {count} records", topic=topic, count=count
        )


class TopicFull(CallError, Busy, code="topic_full", status=422):
    """A cap with `discard: reject` is reached: nothing was appended."""


class RecordsUnreadable(CallError, Corrupt, code="records_unreadable", status=500):
    """The file of some cold records is missing or damaged; all others can be read.

    A reader that continues after `last_seq` of `detail` skips them.
    """

    def __init__(self, file: str, first_seq: int, last_seq: int, reason: Exception) -> None:
        found = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
        super().__init__(
            f"the records {first_seq} to {last_seq} cannot be read from {file}: {found}; "
            f"to go on without them, read from seq {last_seq}",
            first_seq=first_seq,
            last_seq=last_seq,
        )


# Routers and queues ----------------------------------------------------------------------------


class RouterNotFound(CallError, Rejected, code="router_not_found", status=404):
    """There is no router with that name."""

    def __init__(self, router: str) -> None:
        super().__init__(f"there is no router {router!r}", router=router)


class RouterCycle(CallError, Conflict, code="router_cycle", status=409):
    """The router would feed a topic with its own records."""

    def __init__(self, cycle: list[str]) -> None:
        super().__init__(f"the router would close a cycle: {' > '.join(cycle)}", cycle=cycle)


class NotAQueue(CallError, Conflict, code="not_a_queue", status=409):
    """The topic is a log: it has no jobs to claim."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is not a queue: it has no jobs", topic=topic)


class NoDeadLetters(CallError, Conflict, code="no_dead_letters", status=409):
    """The queue has no dead letter topic: its jobs are never given up."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"queue {topic!r} has no dead letter topic: name one as its dead_letter", topic=topic
        )


# Spaces ----------------------------------------------------------------------------------------


class NotASpace(CallError, Conflict, code="not_a_space", status=409):
    """The topic is a log or a queue: it has no entities and takes no commits."""

    def __init__(self, topic: str, found: str) -> None:
        super().__init__(f"topic {topic!r} is a {found}, not a space", topic=topic)


class IsASpace(CallError, Conflict, code="is_a_space", status=409):
    """The topic is a space: it takes commits, not plain records."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic!r} is a space: it takes commits, not records",
            topic=topic,
        )


class EntityNotFound(CallError, Rejected, code="entity_not_found", status=404):
    """The space has no entity with that id, or had none then. `detail["head"]` says as of when."""

    def __init__(self, space: str, entity: str, head_seq: int) -> None:
        super().__init__(
            f"space {space!r} has no entity {entity!r} at seq {head_seq}",
            space=space,
            entity=entity,
            head=head_seq,
        )


class PastGone(CallError, Gone, code="gone", status=410):
    """The records of that past state were removed by the space's limits, or by a delete."""


class CommitProtocol(CallError, Rejected, code="protocol", status=400):
    """A session reused a number for another commit, or used one that is too old.

    Nothing was applied. Sending it again changes nothing.
    """


class CommitConflict(CallError, Conflict, code="conflict", status=409):
    """Something that the commit has read was written since: read again, then commit again."""

    def __init__(self, entity: str, *, basis: int, current: int, kind: str = "read") -> None:
        super().__init__(
            f"entity {entity!r} was read at seq {basis} and written at {current}: read it again"
            if kind == "read"
            else f"entity {entity!r} is not as the session's earlier commit left it: that commit "
            f"was not accepted, or another wrote it at {current}",
            entity=entity,
            basis=basis,
            current=current,
            kind=kind,
        )


class PreconditionFailed(CallError, Rejected, code="precondition_failed", status=412):
    """A precondition of the commit does not hold and never will: do not retry it."""

    def __init__(self, message: str, reason: str, **detail: Any) -> None:
        super().__init__(message, reason=reason, **detail)


class RefusedByRule(CallError, Rejected, code="refused", status=422):
    """A rule of the server refuses the commit, whatever the state: fix the commit."""


# Tables ----------------------------------------------------------------------------------------


class InvalidTable(CallError, Rejected, code="invalid_table", status=400):
    """A definition is not valid for a stream table: a name, a mode, a pair of options."""


class InvalidSchedule(CallError, Rejected, code="invalid_schedule", status=400):
    """A schedule is not a duration, a cron expression or one of the keywords."""


class InvalidQuery(CallError, Rejected, code="invalid_query", status=400):
    """A query is not one SELECT, or reads what a stream table cannot read."""


class QueryTooLarge(CallError, Rejected, code="query_too_large", status=413):
    """The tables of a query are too large to be read by the server."""


class QueryTooSlow(CallError, Rejected, code="query_too_slow", status=422):
    """A query took longer than the server lets it; it was ended."""


class InvalidTableFile(CallError, Rejected, code="invalid_table_file", status=400):
    """A `.sql` file's header or query is wrong; the text says in which line."""


class NotDifferentiable(CallError, Rejected, code="not_differentiable", status=400):
    """A table was to be DIFFERENTIAL, but its query cannot be maintained incrementally."""


class InvalidSource(CallError, Rejected, code="invalid_source", status=400):
    """A topic was declared with columns or a key that it cannot have."""


class PublishRefused(CallError, Rejected, code="publish_refused", status=400):
    """The topic cannot take the changes of a table: it does not exist, or is not a log."""


class PartNotFound(CallError, Rejected, code="part_not_found", status=404):
    """No part of that name has reported to this server."""

    def __init__(self, part: str) -> None:
        super().__init__(f"no part {part!r} has reported here: see GET /v0/parts", part=part)


class PartRefused(CallError, Conflict, code="part_refused", status=409):
    """A part does not do what it was asked for; it says why."""


class PartSilent(CallError, Unknown, code="part_silent", status=503):
    """A part did not answer in time; it may still do what it was asked for."""

    outcome = Outcome.UNKNOWN


class NoWarehouse(CallError, Rejected, code="no_warehouse", status=404):
    """The server has no warehouse of tables."""

    def __init__(self) -> None:
        super().__init__("this server has no warehouse of tables: set catalog")


class SourceNotFound(CallError, Rejected, code="source_not_found", status=404):
    """No topic with that name was declared as a source."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} is not declared as a source",
            topic=topic,
        )


class TableNotFound(CallError, Rejected, code="table_not_found", status=404):
    """There is no stream table with that name."""

    def __init__(self, table: str, near: str | None = None) -> None:
        hint = "" if near is None else f" (did you mean {near!r}?)"
        super().__init__(f"there is no stream table {table!r}{hint}", table=table)


class RelationNotFound(CallError, Rejected, code="relation_not_found", status=404):
    """Neither a table nor a topic that tables can read has that name."""


class SourceExists(CallError, Conflict, code="source_exists", status=409):
    """The topic is already declared."""


class NoContents(CallError, Conflict, code="no_contents", status=409):
    """The table is defined, but was never refreshed, or not yet at that snapshot."""

    def __init__(self, table: str, snapshot: int) -> None:
        super().__init__(
            f"table {table!r} has no contents at snapshot {snapshot}: "
            "it was not refreshed until then",
            table=table,
            snapshot=snapshot,
        )


class TableExists(CallError, Conflict, code="table_exists", status=409):
    """A relation with that name already exists."""


class TableInUse(CallError, Conflict, code="table_in_use", status=409):
    """Other stream tables read what was to be dropped."""

    def __init__(self, table: str, readers: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(readers)} read {table!r}: drop them first, or drop with cascade",
            table=table,
            readers=list(readers),
        )


class TableCycle(CallError, Conflict, code="table_cycle", status=409):
    """A table would read itself, directly or through others. Nothing was changed."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(
            f"the tables would read each other in a cycle: {' > '.join(cycle)}", cycle=list(cycle)
        )


class JobMoved(CallError, Conflict, code="job_moved", status=409):
    """A job is no longer in the state that the change expects."""


class ChangedMeanwhile(CallError, Conflict, code="changed_meanwhile", status=409):
    """Concurrent writers kept changing the same state: read it again, then retry."""


class SnapshotExpired(CallError, Gone, code="snapshot_expired", status=410):
    """The requested snapshot has expired."""


# Not now ---------------------------------------------------------------------------------------


class Throttled(CallError, Busy, code="throttled", status=429):
    """A limit on topics, routers, sessions, connections, bytes or load is reached.

    `limit` in the detail says which one, such as `disk` where the log's disk is full.
    """


class Saturated(Throttled):
    """The machine has no capacity, or the log no room, for a write now: nothing was changed."""

    def __init__(self, message: str, *, retry_after_ms: int, **detail: Any) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, **detail)
        self.detail["retry_after_ms"] = retry_after_ms


class ServerUnavailable(CallError, Unavailable, code="unavailable"):
    """The server cannot do it now; nothing was changed."""


class Internal(ServerUnavailable, code="internal", status=500):
    """The server, or a proxy in front of it, failed while processing the request."""

    outcome = Outcome.UNKNOWN


class NotReady(ServerUnavailable, code="not_ready", status=503):
    """The server is still replaying its log, or its log takes no writes."""


class Replaying(NotReady):
    """The log is still being replayed."""

    def __init__(self, progress: float) -> None:
        super().__init__(
            f"the server is replaying its log: {progress:.0%} done",
            replay_progress=round(progress, 4),
        )


class NotWritable(NotReady):
    """The log takes no writes: the disk is full, or failed. Reads continue.

    So says the probe; a write that the disk has no room for is told `throttled`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the log takes no writes: {reason}", reason=reason)


class ShuttingDown(ServerUnavailable, code="shutting_down", status=503):
    """The server is shutting down and accepts nothing new."""

    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message)


class PartitionFailed(ServerUnavailable, code="partition_failed", status=503):
    """The partition of this topic is damaged and out of service; others are served.

    The text says which file is damaged and where. `penstock salvage` recovers what can be read.
    """


class NotCoordinated(ServerUnavailable, code="not_coordinated", status=503):
    """No coordinator is running that could do it."""


class WarehouseAway(ServerUnavailable, code="warehouse_away", status=503):
    """The catalog is temporarily unreachable."""


# Not known -------------------------------------------------------------------------------------


class NoLeader(ServerUnavailable, code="no_leader", status=503):
    """No node leads the partition, or none that this one can reach: try again soon."""

    AGAIN_MS = 100
    """What the answer says in `retry_after_ms`: an election takes one or two seconds, and the whole
    seconds of the header would add another one."""


class NotTheLeader(ServerUnavailable, code="not_leader", status=421):
    """Only the node that leads the partition can do this: ask it, at `leader` if that is known."""

    def __init__(self, message: str, *, leader: str = "") -> None:
        super().__init__(message, leader=leader)
        if leader:
            self.headers = ((LEADER_HEADER.encode(), leader.encode()),)


class MemberLost(ServerUnavailable, code="member_lost", status=503):
    """The node's directory is not that of the member it was: it serves nothing and does not vote.

    `penstock cluster replace` puts a new directory in its place.
    """


class NotClustered(CallError, Conflict, code="not_clustered", status=409):
    """The server is a node alone: `penstock cluster init` makes its directory a cluster."""


class ChangeInProgress(CallError, Conflict, code="change_in_progress", status=409):
    """The members of the cluster are being changed: wait until that is done."""


class UpgradePending(CallError, Conflict, code="upgrade_pending", status=409):
    """The cluster cannot write this before all its members run a release that reads it.

    Nothing was changed. `members` in the detail are those to upgrade.
    """

    def __init__(self, needed: int, written: int, members: Sequence[str] = ()) -> None:
        wait = f"upgrade {', '.join(members)}" if members else "see `penstock cluster status`"
        super().__init__(
            f"this needs entries of version {needed}, and the cluster writes version {written} "
            f"until all members are known to read a newer one: {wait}, then try again",
            needed=needed,
            written=written,
            members=list(members),
        )


class NoMajorityLeft(CallError, Conflict, code="no_majority_left", status=409):
    """Without the member, too few voters could be reached to write anything."""


class StateMoved(CallError, Conflict, code="state_moved", status=409):
    """The partition is at another index of its log than the one asked for."""


class OutcomeUnknown(CallError, Unknown, code="outcome_unknown", status=504):
    """The request may or may not have taken effect: a failure came after it had begun.

    Send the same write with `idempotency_key` to find out: it takes effect at most once.
    """

    outcome = Outcome.UNKNOWN

    def __init__(
        self, message: str, *, status: int = 0, idempotency_key: str | None = None, **detail: Any
    ) -> None:
        if idempotency_key is not None:
            detail["idempotency_key"] = idempotency_key
        super().__init__(message, status=status, **detail)

    @property
    def idempotency_key(self) -> str | None:
        """The key of the write, if it had one."""
        key = self.detail.get("idempotency_key")
        return key if isinstance(key, str) else None


_BY_STATUS: Final[dict[int, type[CallError]]] = {
    400: InvalidRequest, 401: Unauthorized, 403: Forbidden, 404: NotFound, 405: MethodNotAllowed,
    406: NotAcceptable, 413: PayloadTooLarge, 415: UnsupportedMediaType, 421: ForeignHost,
    422: TopicFull, 429: Throttled, 503: ServerUnavailable,
}  # fmt: skip
"""The meaning of an answer without a known code, such as a proxy's."""
