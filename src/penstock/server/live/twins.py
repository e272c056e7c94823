"""The twin of a page: what the page shows, as data, made of the answers of `/v0`."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from msgspec import Raw

from penstock.kernel.errors import PenstockError
from penstock.protocol.pages import PEEK, Source, live_path
from penstock.protocol.routes import READ
from penstock.server.api.auth import Grant
from penstock.server.api.call import Context
from penstock.server.live.ask import error_of, section
from penstock.server.live.channels import Address
from penstock.server.live.peek import Peek
from penstock.topics.core.predicate import parse_predicate


class Identity(NamedTuple):
    """What every twin says of the server."""

    version: str
    boot: str
    """Another one after every start."""
    address: str
    started: int


class Twins:
    """Makes twins, and what a stream needs to begin with."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self.context, self.identity = context, identity

    async def twin(self, address: Address, grant: Grant | None) -> dict[str, Any]:
        """A page as it is now."""
        at_ms = self.context.clock.now_ms()
        found = address.sources()
        values = await asyncio.gather(*(self.value(address, each, grant) for each in found))
        names = (source.section.name for source in found)
        sections = dict(zip(names, values, strict=True))
        return {"on": address.on, **self.facts(address), "at": at_ms, "sections": sections}

    def facts(self, address: Address) -> dict[str, Any]:
        """What a twin tells besides its sections and its time."""
        names, query = dict(address.names), dict(address.query)
        return {
            "page": address.page.name,
            "name": names.get("name"),
            "id": names.get("id"),
            "query": query,
            "title": address.page.title_of(names),
            **self.identity._asdict(),
            "live": live_path(address.page, names, query),
        }

    async def value(self, address: Address, source: Source, grant: Grant | None) -> Any:
        """A section of a page as it is now."""
        if source.section.kind != PEEK:
            return await section(self.context, grant, source)
        try:
            return newest(self.peek(address, grant), self.context.clock.now_ms())
        except PenstockError as error:
            return error_of(self.context, error)

    def peek(self, address: Address, grant: Grant | None) -> Peek:
        """What follows the records of a page's topic; refused to a key that may not read it."""
        name, tag = dict(address.names)["name"], dict(address.query).get("tag")
        if grant is not None:
            grant.check(READ)
            grant.check_name(name)
        wanted = parse_predicate(tag) if tag else None
        return Peek(self.context.engine, name, wanted, self.context.clock.now_ms())


def newest(peek: Peek, now_ms: int) -> Raw:
    """The newest records, as a section."""
    return Raw(b"{%b}" % peek.newest(now_ms))
