"""A commit and its parts, as in JSON; the effect of a write on a document.

A session numbers its commits from 1. `reads` say what was read and how old it was: `seq` is the
last commit of the space in the reader's copy. Where a read went through writes of the session's own
unconfirmed commits, `pending_reads` names each of them as well; the read itself still has the age
of the state below them. Every read of that entity has seen the writes of the named commits, and of
no others.

>>> commit = parse_commit(b'{"session":"s", "local_seq":1, "writes":[{"entity":"e", "set":5}]}')
>>> commit.writes[0].set, commit.reads
(5, ())
>>> merge_patch({"a": {"b": 1, "c": 2}}, {"a": {"b": None}})
{'a': {'c': 2}}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.commits.paths import ROOT, Path, any_meet, parse_path, touched
from penstock.protocol.errors import InvalidRequest

ENTITY_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}"
_ENTITY_ID: Final = re.compile(ENTITY_ID)
SEQ_MAX: Final = 2**63 - 1

Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
LocalSeq = Annotated[int, Meta(ge=1, le=SEQ_MAX)]


class Read(Struct, frozen=True, omit_defaults=True, gc=False):
    """Something a commit is based on: an entity, or a path in it, as of a seq.

    A shallow read has seen whether something is there, not its value.
    """

    entity: str
    seq: Seq
    path: str = ""
    shallow: bool = False


class PendingRead(Struct, frozen=True, omit_defaults=True, gc=False):
    """An entity was read as an earlier own commit left it, before that commit was confirmed."""

    local_seq: LocalSeq
    entity: str


class Write(Struct, frozen=True, omit_defaults=True, gc=False):
    """A change of one entity: a new document, a merge patch (RFC 7396), or a delete.

    Exactly one of the three.
    """

    entity: str
    set: Any = UNSET
    patch: Any = UNSET
    delete: bool = False


class Origin(Struct, frozen=True, gc=False):
    """A commit of any session."""

    session: str
    local_seq: LocalSeq


class Precondition(Struct, frozen=True, omit_defaults=True, gc=False):
    """What must hold, otherwise the commit must never take effect. Exactly one of the two."""

    receipt_absent: str | UnsetType = UNSET
    origin_committed: Origin | UnsetType = UNSET


class Commit(Struct, frozen=True, omit_defaults=True, gc=False):
    """One atomic change. `event_id` leaves a permanent receipt."""

    session: str
    local_seq: LocalSeq
    writes: tuple[Write, ...]
    reads: tuple[Read, ...] = ()
    pending_reads: tuple[PendingRead, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit."""

    writes_max: int = 256
    reads_max: int = 4_096
    preconditions_max: int = 256
    session_bytes_max: int = 128
    event_id_bytes_max: int = 256


ABSENT: Final = UNSET
"""Stands for the document of an entity that does not exist; null is a document."""


def parse_commit(body: bytes, limits: CommitLimits | None = None) -> Commit:
    """The commit in a request, checked as far as possible without the space."""
    try:
        commit = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"expected a commit, found: {error}") from None
    check_commit(commit, limits or _LIMITS)
    return commit


def encode_commit(commit: Commit) -> bytes:
    """A commit as it is sent."""
    return _ENCODER.encode(commit)


def check_commit(commit: Commit, limits: CommitLimits) -> None:
    """Refuse what no space could accept."""
    session, writes = commit.session, commit.writes
    if not (0 < len(session) <= limits.session_bytes_max and session.isascii()):
        _check_text("session", session, limits.session_bytes_max)
    if commit.event_id is not None:
        _check_text("event_id", commit.event_id, limits.event_id_bytes_max)
    if not writes:
        raise InvalidRequest("expected at least one write, found none")
    if len(writes) > limits.writes_max:
        raise InvalidRequest(f"expected at most {limits.writes_max} writes, found {len(writes)}")
    for write in writes:
        check_entity_id(write.entity)
        given = (write.set is not UNSET) + (write.patch is not UNSET) + write.delete
        if given != 1:
            raise InvalidRequest(
                f"expected exactly one of set, patch and delete for entity {write.entity!r}, "
                f"found {given} of them"
            )
    if commit.reads or commit.pending_reads:
        _check_reads(commit, limits)
    if commit.preconditions:
        _check_count("preconditions", commit.preconditions, limits.preconditions_max)
        for precondition in commit.preconditions:
            _check_precondition(precondition, limits)


@lru_cache(maxsize=16_384)
def check_entity_id(entity: str) -> str:
    """A valid entity id, or `InvalidRequest`."""
    if _ENTITY_ID.fullmatch(entity) is None:
        raise InvalidRequest(
            f"expected an entity id of 1 to 255 of A-Z a-z 0-9 . _ : -, found {entity!r}"
        )
    return entity


def apply_write(document: Any, write: Write) -> Any:
    """The document after a write; it may be `ABSENT` before and after."""
    if write.delete:
        return ABSENT
    if write.set is not UNSET:
        return write.set
    return merge_patch(document, write.patch)


def touches(document: Any, write: Write) -> tuple[Path, ...]:
    """The paths of a document that a write changes or may change."""
    if write.delete or write.set is not UNSET or document is ABSENT:
        return (ROOT,)
    return touched(document, write.patch)


def overlaps(write: Write, path: str, *, document: Any, shallow: bool = False) -> bool:
    """Whether a write to a document may change what is read at a path in it."""
    return any_meet(parse_path(path), touches(document, write), shallow=shallow)


def merge_patch(document: Any, patch: Any) -> Any:
    """A JSON merge patch as in RFC 7396; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def payload_hash(commit: Commit) -> int:
    """A hash that identifies a commit that is sent again, however its JSON is formatted."""
    data = _CANONICAL.encode(commit)
    return int.from_bytes(blake2b(data, digest_size=8).digest()) >> 1  # fits a signed word


def _check_reads(commit: Commit, limits: CommitLimits) -> None:
    _check_count("reads", commit.reads, limits.reads_max)
    for read in commit.reads:
        check_entity_id(read.entity)
        if read.path:
            parse_path(read.path)
    if not commit.pending_reads:
        return
    _check_count("pending_reads", commit.pending_reads, limits.reads_max)
    for pending in commit.pending_reads:
        check_entity_id(pending.entity)
        if pending.local_seq >= commit.local_seq:
            raise InvalidRequest(
                f"expected pending reads of commits before local_seq {commit.local_seq}, "
                f"found {pending.local_seq}"
            )


def _check_precondition(precondition: Precondition, limits: CommitLimits) -> None:
    receipt, origin = precondition.receipt_absent, precondition.origin_committed
    if (receipt is UNSET) == (origin is UNSET):
        raise InvalidRequest(
            "expected exactly one of receipt_absent and origin_committed in a precondition, "
            f"found {'neither' if receipt is UNSET else 'both'}"
        )
    if isinstance(receipt, str):
        _check_text("receipt_absent", receipt, limits.event_id_bytes_max)
    elif isinstance(origin, Origin):
        _check_text("session", origin.session, limits.session_bytes_max)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"expected a {what} of whole characters, found {text!a}") from None
    if not 0 < size_bytes <= bytes_max:
        raise InvalidRequest(f"expected a {what} of 1 to {bytes_max} bytes, found {size_bytes}")


def _check_count(what: str, items: Sequence[object], count_max: int) -> None:
    if len(items) > count_max:
        raise InvalidRequest(f"expected at most {count_max} {what}, found {len(items)}")


_LIMITS: Final = CommitLimits()
_DECODER: Final = msgspec.json.Decoder(Commit)
_ENCODER: Final = msgspec.json.Encoder()
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")
