"""A commit and its parts, as in JSON; the effect of a write on a document, path by path.

>>> commit = parse_commit(b'{"session":"s", "local_seq":1, "writes":[{"entity":"e", "set":5}]}')
>>> commit.writes[0].set, commit.reads
(5, ())
>>> merge_patch({"a": {"b": 1, "c": 2}}, {"a": {"b": None}})
{'a': {'c': 2}}

A path is a JSON pointer (RFC 6901). A read and a write conflict where their paths meet.

>>> parse_path("/a~1b/0")
('a/b', '0')
>>> touched({"a": {"b": 1}, "c": 2}, {"a": {"b": 2}, "c": None})
(('a', 'b'), ('c',))
>>> meet(("a",), ("a", "b")), meet(("a",), ("a", "b"), shallow=True), meet(("a",), ("c",))
(True, False, False)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.protocol.commits import (
    COMMIT_LIMITS,
    Commit,
    CommitLimits,
    CommitWrite,
    Origin,
    Precondition,
)
from penstock.protocol.errors import InvalidRequest

Path = tuple[str, ...]
ROOT: Final[Path] = ()
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
ENTITY_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}"
_ENTITY_ID: Final = re.compile(ENTITY_ID)


def parse_path(pointer: str) -> Path:
    """The segments of a JSON pointer; empty for the whole document."""
    if not pointer:
        return ROOT
    if not pointer.startswith("/") or _BAD_ESCAPE.search(pointer):
        raise InvalidRequest(
            f"malformed path {pointer!r}: give a JSON pointer such as /a/b, with ~0 for ~ and ~1 "
            "for /, or an empty string for the whole document"
        )
    return tuple(
        segment.replace("~1", "/").replace("~0", "~") for segment in pointer[1:].split("/")
    )


def value_at(document: Any, path: Path, missing: Any = None) -> Any:
    """The value at a path in a document."""
    for segment in path:
        if isinstance(document, dict) and segment in document:
            document = document[segment]
        elif isinstance(document, list) and _is_index(segment) and int(segment) < len(document):
            document = document[int(segment)]
        else:
            return missing
    return document


def touched(document: Any, patch: Any) -> tuple[Path, ...]:
    """The paths that a merge patch changes or may change in a document.

    Where the patch descends into a value that is not an object, the whole value is replaced: the
    path itself is touched, and so is everything below it.
    """
    return tuple(_touched(document, patch, ROOT))


def meet(read: Path, write: Path, *, shallow: bool = False) -> bool:
    """Whether a write at one path may change what was read at another.

    It may at the same path, above it, and below it; a shallow read has not looked below.
    """
    if len(write) <= len(read):
        return read[: len(write)] == write
    return not shallow and write[: len(read)] == read


def any_meet(read: Path, writes: Sequence[Path], *, shallow: bool = False) -> bool:
    """Whether a read meets any of several touched paths."""
    return any(meet(read, write, shallow=shallow) for write in writes)


def _touched(document: Any, patch: Any, here: Path) -> Iterator[Path]:
    if not isinstance(patch, dict) or not isinstance(document, dict) or not patch:
        yield here
        return
    for key, value in patch.items():
        yield from _touched(document.get(key), value, (*here, key))


def _is_index(segment: str) -> bool:
    return segment.isascii() and segment.isdigit() and (segment == "0" or segment[0] != "0")


ABSENT: Final = UNSET
"""Stands for the document of an entity that does not exist; null is a document."""


def parse_commit(body: bytes, limits: CommitLimits = COMMIT_LIMITS) -> Commit:
    """The commit in a request, checked as far as possible without the space."""
    try:
        commit = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"malformed commit: {error}") from None
    check_commit(commit, limits)
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
        raise InvalidRequest("a commit needs at least one write")
    if len(writes) > limits.writes_max:
        raise InvalidRequest(
            f"{len(writes)} writes in a commit: at most {limits.writes_max} are allowed"
        )
    for write in writes:
        check_entity_id(write.entity)
        given = (write.set is not UNSET) + (write.patch is not UNSET) + write.delete
        if given != 1:
            raise InvalidRequest(
                f"the write of entity {write.entity!r} has {given} of set, patch and delete: give "
                "one"
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
        raise InvalidRequest(f"invalid entity id {entity!r}: use 1 to 255 of A-Z a-z 0-9 . _ : -")
    return entity


def apply_write(document: Any, write: CommitWrite) -> Any:
    """The document after a write; it may be `ABSENT` before and after."""
    if write.delete:
        return ABSENT
    if write.set is not UNSET:
        return write.set
    return merge_patch(document, write.patch)


def touches(document: Any, write: CommitWrite) -> tuple[Path, ...]:
    """The paths of a document that a write changes or may change."""
    if write.delete or write.set is not UNSET or document is ABSENT:
        return (ROOT,)
    return touched(document, write.patch)


def overlaps(write: CommitWrite, path: str, *, document: Any, shallow: bool = False) -> bool:
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
                f"commit {commit.local_seq} has a pending read of commit {pending.local_seq}: "
                "only earlier commits of the session can be pending"
            )


def _check_precondition(precondition: Precondition, limits: CommitLimits) -> None:
    receipt, origin = precondition.receipt_absent, precondition.origin_committed
    if (receipt is UNSET) == (origin is UNSET):
        raise InvalidRequest(
            f"a precondition has {'neither' if receipt is UNSET else 'both'} of receipt_absent and "
            "origin_committed: give one"
        )
    if isinstance(receipt, str):
        _check_text("receipt_absent", receipt, limits.event_id_bytes_max)
    elif isinstance(origin, Origin):
        _check_text("session", origin.session, limits.session_bytes_max)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{what} {text!a} is not valid Unicode: it has half of a surrogate pair"
        ) from None
    if not 0 < size_bytes <= bytes_max:
        raise InvalidRequest(f"{what} has {size_bytes} bytes: 1 to {bytes_max} are allowed")


def _check_count(what: str, items: Sequence[object], count_max: int) -> None:
    if len(items) > count_max:
        raise InvalidRequest(f"{len(items)} {what} in a commit: at most {count_max} are allowed")


_DECODER: Final = msgspec.json.Decoder(Commit)
_ENCODER: Final = msgspec.json.Encoder()
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")
