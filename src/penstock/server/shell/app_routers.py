"""Handlers of routers. A key must reach both ends of a router to see or touch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.server.answers import Answer
from penstock.server.call import Call
from penstock.server.queries import make_cursor
from penstock.topics.config import parse_bool
from penstock.topics.routers import Router, RouterConfig, parse_router


async def put_router(call: Call) -> Answer:
    """Make a router, or change it where it stands."""
    body = call.body()
    config = parse_router(call.name, body)
    create_dest = parse_bool("create_dest", body.get("create_dest", True))
    _check_ends(call, config)
    created, config = await call.context.engine.put_router(config, create_dest=create_dest)
    echo = config.echo()
    return call.answer(201 if created else 200, router=echo.pop("router"), created=created, **echo)


async def show_router(call: Call) -> Answer:
    """A router and how far it has come."""
    engine = call.context.engine
    _check_ends(call, engine.registry.routers.get(call.name).config)
    router = await engine.show_router(call.name)
    return call.answer(**router.config.echo(), forwarded_total=router.forwarded_total)


async def drop_router(call: Call) -> Answer:
    """Remove a router."""
    engine = call.context.engine
    router = engine.registry.routers.find(call.name)
    if router is not None:
        _check_ends(call, router.config)
    return call.answer(router=call.name, deleted=await engine.remove_router(call.name))


def list_routers(call: Call) -> Answer:
    """Routers by name, a page at a time."""
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
            and call.reaches(router.config.source)
            and call.reaches(router.config.dest)
        ),
        key=lambda router: router.config.name,
    )
    shown: dict[str, Any] = {"routers": [_row(router) for router in found[:page_size]]}
    if len(found) > page_size:
        shown["next_cursor"] = make_cursor(found[page_size - 1].config.name)
    return call.answer(**shown)


HANDLERS: Final[dict[str, Callable[[Call], Any]]] = {
    "put_router": put_router,
    "show_router": show_router,
    "drop_router": drop_router,
    "list_routers": list_routers,
}


def _check_ends(call: Call, config: RouterConfig) -> None:
    call.check_topic(config.source)
    call.check_topic(config.dest)


def _row(router: Router) -> dict[str, Any]:
    return {
        "router": router.config.name,
        "source": router.config.source,
        "dest": router.config.dest,
        "guarantee": router.config.guarantee,
        "forwarded_total": router.forwarded_total,
    }
