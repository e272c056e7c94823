"""The table of routes: what each path does, needs and answers; finding one is two dict look-ups.

>>> route, name = ROUTES.find("POST", "/v0/topics/jobs/claim")
>>> route.handler, name
('claim', 'jobs')
"""

from __future__ import annotations

from typing import Final

from penstock.server.api.auth import ADMIN, DELETE, READ, WRITE
from penstock.server.api.routing import Param, Route, RouteTable
from penstock.server.api.schemas import (
    FLAG,
    IDEMPOTENCY_KEY,
    ROUTER_NAME,
    TEXT,
    TOPIC_NAME,
    U64,
    Schema,
)
from penstock.server.api.tables_routes import TABLE_NAME, TABLE_ROUTES

_TOUCH = "Count this as a use of the topic, which raises its priority."
_PAGES = (
    Param("prefix", TEXT, "Only names that begin like this."),
    Param("page_size", U64, "Rows of a page, 1 to 1000; 100 if not said."),
    Param("cursor", TEXT, "`next_cursor` of the page before."),
)
_WRITES = "/v0/topics/"
TOKEN_IN_QUERY: Final = "open_work"
"""The handler whose key may be in the query; that of a watch looks for it itself."""
_TOPIC = "/v0/topics/{name}"
_ROUTER = "/v0/routers/{name}"
_SPACE = "/v0/spaces/{name}"
_STREAM = "text/event-stream"
_KEY = Param(
    "Idempotency-Key",
    IDEMPOTENCY_KEY,
    "For every write that names no `idempotency_key` itself: the same again lands once.",
)
_AT = Param("at", U64, "As it was at this seq of the space; as it is, if not said.")

ROUTES: Final = RouteTable(
    [
        Route(
            "PUT", _TOPIC, "put_topic", "Make a topic, or change the named keys of one.",
            "TopicPut", ADMIN, "topic", "Config", True, statuses=(200, 201), errors=(409, 429),
        ),
        Route(
            "GET", _TOPIC, "show_topic", "How a topic stands.", "Topic", READ, "topic",
            query=(Param("touch", FLAG, _TOUCH),), errors=(404,),
        ),
        Route(
            "DELETE", _TOPIC, "drop_topic", "Remove a topic and the routers at its ends.",
            "TopicDeleted", DELETE, "topic",
            query=(Param("if_empty", FLAG, "Refuse if it holds records."),), errors=(409,),
        ),
        Route(
            "POST", _TOPIC, "write", "Append records, all of them or none.", "Written", WRITE,
            "topic", "Write", query=(Param("return_seqs", FLAG, "List every seq."),),
            statuses=(200, 201), errors=(404, 409, 413, 422, 429), headers=(_KEY,),
        ),
        Route(
            "GET", "/v0/topics", "list_topics", "Topics by name.", "TopicList", READ,
            query=(*_PAGES, Param("touch", FLAG, _TOUCH)),
        ),
        Route(
            "POST", f"{_TOPIC}/diff", "diff",
            "Records after a cursor; waits for them if asked to. As Arrow if that is accepted.",
            "Diff", READ, "topic", "Read", True,
            query=(
                Param(
                    "from_ts", U64,
                    "Begin with the first record at or after this time, or after `from_seq` if "
                    "that is later.",
                ),
            ),
            errors=(404,),
        ),
        Route(
            "POST", f"{_TOPIC}/delete", "delete", "Delete records by prefix, by tag, or by both.",
            "Deleted", DELETE, "topic", "Delete", errors=(404,),
        ),
        Route(
            "POST", "/v0/write", "write_many",
            "Append to several topics of one partition in one commit.", "WrittenMany", WRITE,
            body="WriteMany", statuses=(200, 201), errors=(404, 409, 413, 422, 429),
            headers=(_KEY,),
        ),
        Route(
            "PUT", _ROUTER, "put_router", "Make a router, or change it where it stands.", "Router",
            ADMIN, "router", "RouterBody", statuses=(200, 201), errors=(404, 409, 429),
        ),
        Route(
            "GET", _ROUTER, "show_router", "A router and how far it has come.", "Router", READ,
            "router", errors=(404,),
        ),
        Route(
            "DELETE", _ROUTER, "drop_router", "Remove a router.", "RouterDeleted", DELETE, "router",
        ),
        Route(
            "GET", "/v0/routers", "list_routers", "Routers by name.", "RouterList", READ,
            query=(
                *_PAGES,
                Param("source", TEXT, "Only those from this topic."),
                Param("dest", TEXT, "Only those to this topic."),
            ),
        ),
        Route(
            "POST", "/v0/watch", "make_watch", "Begin a watch session.", "Session", READ,
            body="Watch", query=(Param("lenient", FLAG, "Leave out topics that do not exist."),),
            errors=(404, 429),
        ),
        Route(
            "GET", "/v0/watch/{name}", "open_watch", "The event stream of a watch session.", "",
            named="session", query=(Param("token", TEXT, "The key, for browsers."),),
            errors=(404, 406, 429), guard="own", media=_STREAM,
            headers=(
                Param("Last-Event-ID", TEXT, "`id` of the last event seen; only ever goes back."),
            ),
        ),
        Route(
            "GET", "/v0/ws", "open_ws", "Subscribe and publish over a WebSocket.", "",
            statuses=(101,), errors=(429,), guard="own", media="",
        ),
        Route(
            "POST", f"{_TOPIC}/claim", "claim", "Lease jobs of a queue.", "Claimed", READ | WRITE,
            "topic", "Claim", errors=(404, 409),
        ),
        Route(
            "POST", f"{_TOPIC}/ack", "ack", "Finish jobs.", "Acked", WRITE, "topic", "Ack",
            errors=(404, 409),
        ),
        Route(
            "POST", f"{_TOPIC}/nack", "nack", "Give jobs back.", "Nacked", WRITE, "topic", "Nack",
            errors=(404, 409),
        ),
        Route(
            "POST", f"{_TOPIC}/extend", "extend", "Let leases end later.", "Extended", WRITE,
            "topic", "Extend", errors=(404, 409),
        ),
        Route(
            "GET", f"{_TOPIC}/work", "open_work", "Jobs of a queue as an event stream.", "",
            READ | WRITE, "topic",
            query=(
                Param("node", TEXT, "Who works.", required=True),
                Param("max", U64, "Jobs at a time, 1 to 1000; 1 if not said."),
                Param("lease_ms", U64, "How long each job is leased."),
                Param("token", TEXT, "The key, for browsers."),
            ),
            errors=(404, 406, 409, 429), media=_STREAM,
        ),
        Route(
            "POST", f"{_SPACE}/commits", "commit",
            "Change entities of a space at once, if nothing that was read has changed.",
            "CommitAccepted", WRITE, "topic", "Commit", errors=(409, 412, 413, 422, 429),
        ),
        Route(
            "GET", f"{_SPACE}/entities", "list_entities", "Entities by id, all as of one seq.",
            "EntityList", READ, "topic",
            query=(
                Param("prefix", TEXT, "Only ids that begin like this."),
                Param("limit", U64, "Rows of a page, 1 to 1000; 100 if not said."),
                Param("after", TEXT, "`next` of the page before."),
                _AT,
            ),
            errors=(404, 409, 410),
        ),
        Route(
            "GET", f"{_SPACE}/entities/{{id}}", "show_entity", "An entity, now or as it was.",
            "Entity", READ, "topic", query=(_AT,), errors=(404, 409, 410),
        ),
        Route(
            "GET", f"{_SPACE}/entities/{{id}}/history", "entity_history",
            "The commits that wrote an entity, oldest first.", "EntityHistory", READ, "topic",
            query=(
                Param("after", U64, "Only commits after this seq; `next` of the page before."),
                Param("limit", U64, "Rows of a page, 1 to 1000; 100 if not said."),
            ),
            errors=(404, 409),
        ),
        Route(
            "POST", "/v0/backup", "make_backup", "Copy everything to a directory of the server.",
            "Backup", ADMIN, body="BackupBody",
        ),
        *TABLE_ROUTES,
        Route(
            "GET", "/v0/scheduler", "scheduler", "What the scheduler is about to do, and why.",
            "Scheduler", READ, query=(Param("topic", TEXT, "Explain this topic."),), errors=(404,),
        ),
        Route(
            "GET", "/v0/metrics", "metrics", "Numbers, for Prometheus or as JSON.", "Metrics",
            READ, is_data=False,
            query=(
                Param("topics", FLAG, "Also the numbers of single topics, of 1000 at most."),
                Param("prefix", TEXT, "Of those whose names begin like this only."),
            ),
        ),
        Route(
            "GET", "/v0/openapi.json", "openapi", "This document.", "OpenApi", is_data=False,
        ),
        *(
            Route(
                "GET", path, "health", "Whether the server runs.", "Health", guard="probe",
                is_data=False,
            )
            for path in ("/v0/health", "/healthz")
        ),
        *(
            Route(
                "GET", path, "ready", "Whether the log is replayed and takes writes.", "Ready",
                guard="probe", is_data=False, errors=(503,),
            )
            for path in ("/v0/ready", "/readyz")
        ),
    ]
)  # fmt: skip
"""Every route of the server."""

NAME_SHAPES: Final[dict[str, Schema]] = {
    "topic": TOPIC_NAME,
    "router": ROUTER_NAME,
    "entity": TOPIC_NAME,
    "table": TABLE_NAME,
    "source": TOPIC_NAME,
    "session": {"type": "string", "pattern": r"^wid_[A-Za-z0-9_-]{22}$"},
}


def is_write(method: str, path: str) -> bool:
    """Whether a request appends to one topic.

    Such requests reach the engine in the order in which they came, whenever they are answered; any
    other begins only when what came before it is answered, and is waited for.
    """
    return method == "POST" and path.startswith(_WRITES) and path.find("/", len(_WRITES)) < 0


__all__ = ["NAME_SHAPES", "ROUTES", "TOKEN_IN_QUERY", "Param", "Route", "RouteTable", "is_write"]
