"""What the topic protocol refuses: its codes and HTTP statuses on the kernel's groups of errors.

`detail` of each is exactly what the contract promises for the situation.
"""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.kernel.errors import Busy, Conflict, Corrupt, Gone, Rejected


class InvalidRequest(Rejected):
    """A field, a name or a predicate is not what the protocol allows."""

    code = "invalid_request"
    status: ClassVar[int] = 400


class BatchTooLarge(Rejected):
    """More records or seqs in one request than one request may have."""

    code = "batch_too_large"
    status: ClassVar[int] = 400


class RecordTooLarge(Rejected):
    """A record is over the limit, or a write could not fit even into an empty topic."""

    code = "record_too_large"
    status: ClassVar[int] = 400


class TopicNotFound(Rejected):
    """There is no topic of that name."""

    code = "topic_not_found"
    status: ClassVar[int] = 404

    def __init__(self, topic: str) -> None:
        super().__init__(f"expected an existing topic, found none named {topic!r}", topic=topic)


class RouterNotFound(Rejected):
    """There is no router of that name."""

    code = "router_not_found"
    status: ClassVar[int] = 404

    def __init__(self, router: str) -> None:
        super().__init__(f"expected an existing router, found none named {router!r}", router=router)


class RouterCycle(Conflict):
    """The router would feed a topic with its own records."""

    code = "router_cycle"
    status: ClassVar[int] = 409

    def __init__(self, cycle: list[str]) -> None:
        super().__init__(f"expected no cycle of routers, found {' > '.join(cycle)}", cycle=cycle)


class TopicExistsIncompatible(Conflict):
    """What exists cannot become what was asked for: its type, its feeder or its ends are fixed."""

    code = "topic_exists_incompatible"
    status: ClassVar[int] = 409


class TopicNotEmpty(Conflict):
    """The topic was to be deleted only if empty, and is not."""

    code = "topic_not_empty"
    status: ClassVar[int] = 409

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(
            f"expected topic {topic!r} to be empty, found {count} records", topic=topic, count=count
        )


class NotAQueue(Conflict):
    """The topic is a log: it has no claims."""

    code = "not_a_queue"
    status: ClassVar[int] = 409

    def __init__(self, topic: str) -> None:
        super().__init__(f"expected a queue, found topic {topic!r} to be a log", topic=topic)


class NotASpace(Conflict):
    """The topic is a log or a queue: it has no entities and takes no commits."""

    code = "not_a_space"
    status: ClassVar[int] = 409

    def __init__(self, topic: str, found: str) -> None:
        super().__init__(f"expected a space, found topic {topic!r} to be a {found}", topic=topic)


class IsASpace(Conflict):
    """The topic is a space: its records are commits, and nothing else can be written to it."""

    code = "is_a_space"
    status: ClassVar[int] = 409

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"expected a topic for records, found {topic!r} to be a space, which takes commits",
            topic=topic,
        )


class EntityNotFound(Rejected):
    """The space has no entity of that id, or had none then."""

    code = "entity_not_found"
    status: ClassVar[int] = 404

    def __init__(self, space: str, entity: str, head_seq: int) -> None:
        super().__init__(
            f"expected an entity of space {space!r} at seq {head_seq}, "
            f"found none with the id {entity!r}",
            space=space,
            entity=entity,
            head=head_seq,
        )


class PastGone(Gone):
    """What is needed to tell how it was then has left the space by its limits, or by a delete."""

    code = "gone"
    status: ClassVar[int] = 410


class TopicFull(Busy):
    """A cap with `discard: reject` is reached: nothing was appended."""

    code = "topic_full"
    status: ClassVar[int] = 422


class Throttled(Busy):
    """A limit on topics, routers, sessions, bytes or load is reached: nothing was changed."""

    code = "throttled"
    status: ClassVar[int] = 429


class Saturated(Throttled):
    """The machine has no time, or the log no room, for a write now: nothing was changed."""

    def __init__(self, message: str, *, retry_after_ms: int, **detail: Any) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, **detail)
        self.detail["retry_after_ms"] = retry_after_ms


class TopicsApart(Conflict):
    """The topics of one atomic write live in different partitions."""

    code = "topic_exists_incompatible"
    status: ClassVar[int] = 409

    def __init__(self, topic: str, other: str) -> None:
        super().__init__(
            f"expected topics that share a partition, found {topic!r} and {other!r} apart",
            topic=other,
            reason="topics_apart",
        )


class RecordsUnreadable(Corrupt):
    """The file of some cold records is missing or damaged; all others can be read.

    A reader that goes on after `last_seq` passes over them.
    """

    code = "records_unreadable"
    status: ClassVar[int] = 500

    def __init__(self, file: str, first_seq: int, last_seq: int, reason: Exception) -> None:
        found = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
        super().__init__(
            f"the records {first_seq} to {last_seq} cannot be read from {file}: {found}; "
            f"to go on without them, read from seq {last_seq}",
            first_seq=first_seq,
            last_seq=last_seq,
        )
