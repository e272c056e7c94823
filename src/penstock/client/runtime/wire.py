"""The calls of a runtime: a commit, a page of entities, a commit as the space's topic has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.calls import Call
from penstock.client.errors import NotPenstock
from penstock.client.runtime.replica import Change, Version
from penstock.client.wire import Answer, HttpRequest
from penstock.commits.model import Commit, Write, encode_commit
from penstock.protocol.answers import StoredRecord

T = TypeVar("T")


class CommitAnswer(msgspec.Struct, frozen=True):
    """What the server says to a commit that it took, now or before."""

    seq: int
    ts: int | None = None
    replayed: bool = False
    epoch: int | None = None


class _Entity(msgspec.Struct, frozen=True):
    entity: str
    seq: int
    doc: Any = None


class EntityPage(msgspec.Struct, frozen=True):
    """Some entities as of the commit `head`; `next` is where the following page begins."""

    entities: list[_Entity]
    head: int
    next: str | None = None

    def versions(self) -> dict[str, Version]:
        """The entities by name."""
        return {each.entity: Version(each.doc, each.seq) for each in self.entities}


class _Recorded(msgspec.Struct, frozen=True):
    session: str
    local_seq: int
    writes: tuple[Write, ...]


def commit_call(space: str, commit: Commit) -> Call[CommitAnswer]:
    """Commit. Tried once here: the runtime itself sends it again, and the server knows it then."""
    request = HttpRequest("POST", f"{_space(space)}/commits", encode_commit(commit))
    return Call(request, _reader(CommitAnswer), probes=True)


def entities_call(space: str, *, after: str | None, limit: int) -> Call[EntityPage]:
    """A page of the entities of a space; one that follows another is of the same commit."""
    query = {"after": after, "limit": limit}
    present = urlencode({key: value for key, value in query.items() if value is not None})
    request = HttpRequest("GET", f"{_space(space)}/entities?{present}")
    return Call(request, _reader(EntityPage))


def change_of(record: StoredRecord) -> Change:
    """A record of a space's topic as the commit it is."""
    recorded = record.data_as(_Recorded)
    return Change(record.seq, recorded.session, recorded.local_seq, recorded.writes)


def _space(name: str) -> str:
    return f"/v0/spaces/{quote(name, safe=':')}"


def _reader(kind: type[T]) -> Callable[[Answer], T]:
    def read(answer: Answer) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(
                f"expected an answer of the /v0 protocol, found {answer.body[:80]!r}: {error}",
                status=answer.status,
            ) from error

    return read
