"""Handlers of routers. A key must have access to both ends of a router to see or change it.

A refusal names no topic or router that the caller may not access and has not named.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernel.errors import PenstockError
from penstock.protocol import answers, requests
from penstock.protocol.errors import (
    Forbidden,
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)
from penstock.protocol.routes import ADMIN, DELETE, PAGES, READ, TEXT, Param
from penstock.protocol.values import check_router_name, check_topic_name
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import make_cursor
from penstock.server.http.message import Answer
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.router import Router, RouterConfig

HIDDEN: Final = "…"
"""Replaces the name of a topic in a cycle that the caller may not access."""


@ROUTES.put(
    "/v0/routers/{name}",
    answer=answers.RouterPut,
    scope=ADMIN,
    named="router",
    body=requests.RouterBody,
    statuses=(200, 201),
    errors=(TopicNotFound, RouterCycle, TopicExistsIncompatible, Throttled),
)
async def put_router(call: Call) -> Answer:
    """Create a router, or update it in place."""
    body = call.read(requests.RouterBody)
    config = router_config(call.name, body)
    for end in (config.source, config.dest):
        call.check_topic(end)
    try:
        created, config = await call.context.engine.routers.put(
            config, create_dest=body.create_dest
        )
    except (RouterCycle, TopicExistsIncompatible) as refused:
        raise _as_told(call, config, refused) from None
    echo = config.echo()
    return call.answer(201 if created else 200, router=echo.pop("router"), created=created, **echo)


@ROUTES.get(
    "/v0/routers/{name}",
    answer=answers.RouterState,
    scope=READ,
    named="router",
    errors=(RouterNotFound,),
)
async def show_router(call: Call) -> Answer:
    """A router and its progress."""
    engine = call.context.engine
    if not call.reaches_router(engine.registry.routers.get(call.name).config):
        raise _out_of_reach(call.name)
    router = await engine.routers.show(call.name)
    return call.answer(**router.config.echo(), forwarded_total=router.forwarded_total)


@ROUTES.delete("/v0/routers/{name}", answer=answers.RouterDeletion, scope=DELETE, named="router")
async def drop_router(call: Call) -> Answer:
    """Remove a router."""
    engine = call.context.engine
    router = engine.registry.routers.find(call.name)
    if router is not None and not call.reaches_router(router.config):
        raise _out_of_reach(call.name)
    return call.answer(router=call.name, deleted=await engine.routers.remove(call.name))


@ROUTES.get(
    "/v0/routers",
    answer=answers.RouterPage,
    scope=READ,
    query=(
        *PAGES,
        Param("source", TEXT, "Only those from this topic."),
        Param("dest", TEXT, "Only those to this topic."),
    ),
)
def list_routers(call: Call) -> Answer:
    """Routers by name."""
    query = call.query
    prefix, after, page_size = query.text("prefix") or "", query.after(), query.page_size()
    source, dest = query.text("source"), query.text("dest")
    found = sorted(
        (
            router
            for router in call.context.engine.registry.routers
            if router.config.name.startswith(prefix)
            and (after is None or router.config.name > after)
            and (source is None or router.config.source == source)
            and (dest is None or router.config.dest == dest)
            and call.reaches_router(router.config)
        ),
        key=lambda router: router.config.name,
    )
    shown: dict[str, Any] = {"routers": [_row(router) for router in found[:page_size]]}
    if len(found) > page_size:
        shown["next_cursor"] = make_cursor(found[page_size - 1].config.name)
    return call.answer(**shown)


def router_config(name: str, body: requests.RouterBody) -> RouterConfig:
    """The definition of a router, or `InvalidRequest`."""
    source, dest = check_topic_name(body.source), check_topic_name(body.dest)
    if source == dest:
        raise InvalidRequest(f"a router cannot lead from {source!r} to itself: name another dest")
    return RouterConfig(
        check_router_name(name),
        source,
        dest,
        body.preserve_node,
        body.preserve_tag,
        None if body.filter is None else parse_predicate(body.filter),
        body.allow_cycle,
        body.guarantee,
    )


def _out_of_reach(name: str) -> Forbidden:
    return Forbidden(f"router {name!r} leads outside of the API key's prefixes")


def _as_told(
    call: Call, config: RouterConfig, refused: RouterCycle | TopicExistsIncompatible
) -> PenstockError:
    """Why a router is refused, without the names that the caller may not access."""
    detail = refused.detail
    if isinstance(refused, RouterCycle):
        return RouterCycle([each if call.reaches(each) else HIDDEN for each in detail["cycle"]])
    ends = detail.get("existing_source", config.source), detail.get("existing_dest", config.dest)
    if not all(map(call.reaches, ends)):
        return _out_of_reach(config.name)
    if call.is_bounded and detail.get("reason") == "router_dest_fan_in":
        # Its text names the existing router, wherever that one reads from.
        return TopicExistsIncompatible(
            f"topic {config.dest!r} is fed by another source already", **detail
        )
    return refused


def _row(router: Router) -> dict[str, Any]:
    return {
        "router": router.config.name,
        "source": router.config.source,
        "dest": router.config.dest,
        "guarantee": router.config.guarantee,
        "forwarded_total": router.forwarded_total,
    }
