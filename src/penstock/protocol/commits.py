"""A commit of a space, as it is sent, stored and described: one set of structs for all of them.

A session numbers its commits from 1. `reads` say what was read and how old it was: `seq` is the
last commit of the space in the reader's copy. Where a read went through writes of the session's own
unconfirmed commits, `pending_reads` names each of them as well; the read itself still has the age
of the state below them. Every read of that entity has seen the writes of the named commits, and of
no others.

The decoder checks types and numbers; what JSON Schema says beyond that is for the OpenAPI document
and is checked by `penstock.commits.model.check_commit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.protocol.values import TopicName

SEQ_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit."""

    writes_max: int = 256
    reads_max: int = 4_096
    preconditions_max: int = 256
    session_bytes_max: int = 128
    event_id_bytes_max: int = 256


COMMIT_LIMITS: Final = CommitLimits()


def _text(bytes_max: int) -> Meta:
    return Meta(extra_json_schema={"minLength": 1, "maxLength": bytes_max})


def _one_of(*names: str) -> Meta:
    """Exactly one of these members is present."""
    return Meta(extra_json_schema={"oneOf": [{"required": [name]} for name in names]})


CommitSeq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
LocalSeq = Annotated[int, Meta(ge=1, le=SEQ_MAX)]
SessionName = Annotated[str, _text(COMMIT_LIMITS.session_bytes_max)]
EventId = Annotated[str, _text(COMMIT_LIMITS.event_id_bytes_max)]
JsonPointer = Annotated[str, Meta(extra_json_schema={"pattern": "^(/([^~]|~[01])*)?$"})]


class CommitRead(Struct, frozen=True, omit_defaults=True, gc=False):
    """Something a commit is based on: an entity, or a path in it, as of a seq.

    A shallow read has seen whether something is there, not its value.
    """

    entity: TopicName
    seq: CommitSeq
    path: JsonPointer = ""
    shallow: bool = False


class PendingRead(Struct, frozen=True, omit_defaults=True, gc=False):
    """An entity was read as an earlier own commit left it, before that commit was confirmed."""

    local_seq: LocalSeq
    entity: TopicName


class CommitWrite(Struct, frozen=True, omit_defaults=True, gc=False):
    """A change of one entity: a new document, a merge patch (RFC 7396), or a delete.

    Exactly one of the three.
    """

    entity: TopicName
    set: Any = UNSET
    patch: Any = UNSET
    delete: bool = False


class Origin(Struct, frozen=True, gc=False):
    """A commit of any session."""

    session: SessionName
    local_seq: LocalSeq


class Precondition(Struct, frozen=True, omit_defaults=True, gc=False):
    """What must hold, otherwise the commit must never take effect. Exactly one of the two.

    No commit with an event id was accepted, or the commit that this one depends on was.
    """

    receipt_absent: EventId | UnsetType = UNSET
    origin_committed: Origin | UnsetType = UNSET


_WRITE_KINDS: Final = Meta(
    extra_json_schema={
        "oneOf": [
            {"required": ["set"]},
            {"required": ["patch"]},
            {"required": ["delete"], "properties": {"delete": {"const": True}}},
        ]
    }
)


class Commit(Struct, frozen=True, omit_defaults=True, gc=False):
    """Changes of entities that take effect together, if nothing that was read has changed.

    `event_id` leaves a permanent receipt.
    """

    session: SessionName
    local_seq: LocalSeq
    writes: Annotated[
        tuple[Annotated[CommitWrite, _WRITE_KINDS], ...],
        Meta(extra_json_schema={"minItems": 1, "maxItems": COMMIT_LIMITS.writes_max}),
    ]
    reads: Annotated[
        tuple[CommitRead, ...], Meta(extra_json_schema={"maxItems": COMMIT_LIMITS.reads_max})
    ] = ()
    pending_reads: Annotated[
        tuple[PendingRead, ...], Meta(extra_json_schema={"maxItems": COMMIT_LIMITS.reads_max})
    ] = ()
    preconditions: Annotated[
        tuple[Annotated[Precondition, _one_of("receipt_absent", "origin_committed")], ...],
        Meta(extra_json_schema={"maxItems": COMMIT_LIMITS.preconditions_max}),
    ] = ()
    event_id: EventId | None = None
