"""The calls of spaces as data: commits, entities, histories; and their results.

>>> call = get_entity("home", "meter:7", at_seq=12)
>>> call.request.method, call.request.target
('GET', '/v0/spaces/home/entities/meter:7?at=12')
"""

from __future__ import annotations

import msgspec

from penstock.client.calls import ApiCall, query_text, quoted, reads
from penstock.client.records import check_numbers
from penstock.client.wire import HttpRequest
from penstock.commits.model import encode_commit
from penstock.protocol.answers import (
    CommitAccepted,
    EntityHistory,
    EntityPage,
    EntityState,
    SpacePage,
)
from penstock.protocol.commits import Commit
from penstock.protocol.errors import InvalidRequest


def commit(space: str, commit: Commit) -> ApiCall[CommitAccepted]:
    """Change entities. Idempotent."""
    try:
        body = encode_commit(commit)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"a document cannot be encoded as JSON: {error}") from error
    check_numbers(commit.writes, body)
    return ApiCall(
        HttpRequest("POST", f"{_space(space)}/commits", body),
        reads(CommitAccepted),
        idempotency_key=f"{commit.session}/{commit.local_seq}",
    )


def commit_once(space: str, commit: Commit) -> ApiCall[CommitAccepted]:
    """Like `commit`, for a runtime, which checks the documents and retries by itself."""
    request = HttpRequest("POST", f"{_space(space)}/commits", encode_commit(commit))
    return ApiCall(request, reads(CommitAccepted), probes=True)


def list_spaces(
    prefix: str = "", *, page_size: int = 1_000, cursor: str | None = None
) -> ApiCall[SpacePage]:
    """One page of the spaces whose names begin with a prefix."""
    query = query_text(prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ApiCall(HttpRequest("GET", f"/v0/spaces{query}"), reads(SpacePage))


def after_spaces(page: SpacePage, prefix: str, page_size: int) -> ApiCall[SpacePage] | None:
    """The call for the next page of spaces."""
    if page.next_cursor is None:
        return None
    return list_spaces(prefix, page_size=page_size, cursor=page.next_cursor)


def get_entity(space: str, entity: str, *, at_seq: int | None = None) -> ApiCall[EntityState]:
    """Show an entity, now or as of a seq."""
    request = HttpRequest("GET", f"{_entity(space, entity)}{query_text(at=at_seq)}")
    return ApiCall(request, reads(EntityState))


def list_entities(
    space: str,
    prefix: str = "",
    *,
    at_seq: int | None = None,
    after: str | None = None,
    limit: int = 1_000,
) -> ApiCall[EntityPage]:
    """One page of the entities whose ids begin with a prefix."""
    query = query_text(prefix=prefix or None, at=at_seq, after=after, limit=limit)
    return ApiCall(HttpRequest("GET", f"{_space(space)}/entities{query}"), reads(EntityPage))


def after_entities(
    page: EntityPage, space: str, prefix: str, limit: int
) -> ApiCall[EntityPage] | None:
    """The call for the next page of entities, as of the same seq."""
    if page.next is None:
        return None
    return list_entities(space, prefix, after=page.next, limit=limit)


def entity_history(
    space: str, entity: str, *, after_seq: int = 0, limit: int = 1_000
) -> ApiCall[EntityHistory]:
    """One page of the commits that wrote an entity."""
    query = query_text(after=after_seq, limit=limit)
    request = HttpRequest("GET", f"{_entity(space, entity)}/history{query}")
    return ApiCall(request, reads(EntityHistory))


def after_history(
    page: EntityHistory, space: str, entity: str, limit: int
) -> ApiCall[EntityHistory] | None:
    """The call for the next page of a history."""
    if page.next is None:
        return None
    return entity_history(space, entity, after_seq=page.next, limit=limit)


def _space(name: str) -> str:
    return f"/v0/spaces/{quoted(name)}"


def _entity(space: str, entity: str) -> str:
    return f"{_space(space)}/entities/{quoted(entity)}"
