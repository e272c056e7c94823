"""The shapes of requests and answers as JSON Schema, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from penstock.protocol.config import config_fields

Schema = dict[str, Any]

U64: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
U32: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}
TOPIC_NAME: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"}
ROUTER_NAME: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"}


def ref(name: str) -> Schema:
    """A shape that stands among the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def obj(required: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` names its needed properties, other properties are allowed."""
    shape: Schema = {"type": "object", "properties": properties}
    if required:
        shape["required"] = required.split()
    return shape


def listed(items: Schema, **limits: int) -> Schema:
    """An array of one kind of thing."""
    return {"type": "array", "items": items, **limits}


def nullable(shape: Schema) -> Schema:
    """The shape, or null."""
    return {"anyOf": [shape, {"type": "null"}]}


def _data(required: str, /, **properties: Schema) -> Schema:
    """A data answer: it always has a performance block."""
    return obj(f"{required} performance", **properties, performance=ref("Performance"))


def config_shape() -> Schema:
    """A topic's configuration."""
    return obj(**{name: dict(field.shape) for name, field in config_fields().items()})


_NODES: Final = {"anyOf": [TEXT, listed(TEXT)]}
_META: Final[Schema] = {"type": "object", "maxProperties": 64}
_META_SHOWN: Final[Schema] = {"type": "object"}
"""Routers and dead letters add keys of their own."""
# Limits of texts are in bytes, which JSON Schema cannot say: so many characters at most.
_TAG: Final[Schema] = {"type": "string", "maxLength": 256}
_NODE: Final[Schema] = {"type": "string", "maxLength": 128}
_WORKER: Final[Schema] = {**_NODE, "minLength": 1}
IDEMPOTENCY_KEY: Final[Schema] = {"type": "string", "maxLength": 256}
_PREDICATE: Final[Schema] = {
    "description": '["tag","Eq",value], ["tag","Glob","prefix*"] or a bare string for either.',
    "anyOf": [
        {"type": "string", "pattern": r"^[^*]*\*?$"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, TEXT],
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [
                {"const": "tag"},
                {"const": "Glob"},
                {"type": "string", "pattern": r"^[^*]*\*$"},
            ],
            "minItems": 3,
            "maxItems": 3,
        },
    ],
}
_NEW_RECORD: Final = obj(
    "data",
    data=ANY,
    tag=_TAG,
    node=_NODE,
    meta=_META,
)
_RECORD: Final = obj(
    "$seq $ts",
    **{"$seq": U64, "$ts": U64, "$node": TEXT, "$tag": TEXT},
    data=ANY,
    meta=_META_SHOWN,
)
_WRITE: Final = obj(
    "records",
    records=listed(ref("NewRecord"), minItems=1, maxItems=10_000),
    node=_NODE,
    idempotency_key=IDEMPOTENCY_KEY,
    create=FLAG,
    config=ref("Config"),
    disable_backpressure=FLAG,
)
_ROUTER_FIELDS: Final[dict[str, Schema]] = {
    "source": TOPIC_NAME,
    "dest": TOPIC_NAME,
    "preserve_node": FLAG,
    "preserve_tag": FLAG,
    "filter": nullable(ref("Predicate")),
    "allow_cycle": FLAG,
    "guarantee": {"enum": ["at_least_once", "exactly_once"]},
}
_SETTLE: Final[dict[str, Schema]] = {
    "node": _WORKER,
    "seqs": listed(U64, maxItems=1_000),
    "lease_ids": listed(
        {"type": "string", "pattern": "^(lease_[0-9a-fA-F]{1,64})?$"}, maxItems=1_000
    ),
}
_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_LOCAL_SEQ: Final[Schema] = {**_SEQ, "minimum": 1}
_SESSION: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 128}
_EVENT_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 256}
_ENTITY: Final = obj("entity seq doc", entity=TOPIC_NAME, seq=U64, doc=ANY)
_ONE_OF_THREE: Final[Schema] = {
    "oneOf": [
        {"required": ["set"]},
        {"required": ["patch"]},
        {"required": ["delete"], "properties": {"delete": {"const": True}}},
    ]
}
SPACES: Final[dict[str, Schema]] = {
    "Commit": obj(
        "session local_seq writes",
        session=_SESSION,
        local_seq=_LOCAL_SEQ,
        writes=listed(
            obj("entity", entity=TOPIC_NAME, set=ANY, patch=ANY, delete=FLAG) | _ONE_OF_THREE,
            minItems=1,
            maxItems=256,
        ),
        reads=listed(
            obj(
                "entity seq",
                entity=TOPIC_NAME,
                seq=_SEQ,
                path={"type": "string", "pattern": "^(/([^~]|~[01])*)?$"},
                shallow=FLAG,
            ),
            maxItems=4_096,
        ),
        pending_reads=listed(
            obj("local_seq entity", local_seq=_LOCAL_SEQ, entity=TOPIC_NAME), maxItems=4_096
        ),
        preconditions=listed(
            {
                "oneOf": [
                    obj("receipt_absent", receipt_absent=_EVENT_ID),
                    obj(
                        "origin_committed",
                        origin_committed=obj(
                            "session local_seq", session=_SESSION, local_seq=_LOCAL_SEQ
                        ),
                    ),
                ]
            },
            maxItems=256,
        ),
        event_id=nullable(_EVENT_ID),
    ),
    "CommitAccepted": _data("seq ts replayed epoch", seq=U64, ts=U64, replayed=FLAG, epoch=U64),
    "Entity": _data("entity seq doc head", entity=TEXT, seq=U64, doc=ANY, head=U64),
    "EntityList": _data(
        "entities head next", entities=listed(_ENTITY), head=U64, next=nullable(TEXT)
    ),
    "EntityHistory": _data(
        "entity commits head next complete",
        entity=TEXT,
        commits=listed(
            obj(
                "seq ts session local_seq writes",
                seq=U64,
                ts=U64,
                session=TEXT,
                local_seq=U64,
                event_id=TEXT,
                writes=listed({"type": "object"}),
            )
        ),
        head=U64,
        next=nullable(U64),
        complete=FLAG,
    ),
}
"""The shapes of commits and entities."""

_PLACE: Final = obj(from_seq=U64, tail=FLAG, epoch=U64, tag=ref("Predicate"))

COMPONENTS: Final[dict[str, Schema]] = {
    "Error": obj(
        "error", error=obj("code message", code=TEXT, message=TEXT, detail={"type": "object"})
    ),
    "Performance": obj("server_total_ms", server_total_ms={"type": "number"}),
    "Config": config_shape(),
    "Predicate": _PREDICATE,
    "NewRecord": _NEW_RECORD,
    "Record": _RECORD,
    "Write": _WRITE,
    "Written": _data(
        "topic first_seq last_seq head_seq count created deduped",
        topic=TEXT,
        first_seq=U64,
        last_seq=U64,
        seqs=listed(U64),
        head_seq=U64,
        count=U64,
        created=FLAG,
        deduped=FLAG,
    ),
    "WriteMany": obj(
        "writes",
        writes=listed(
            {"allOf": [ref("Write"), obj("topic", topic=TOPIC_NAME)]}, minItems=1, maxItems=256
        ),
    ),
    "BackupBody": obj("directory", directory=TEXT),
    "Backup": _data("directory files bytes", directory=TEXT, files=U64, bytes=U64),
    "WrittenMany": _data("writes", writes=listed({"type": "object"})),
    "TopicPut": _data("topic created config", topic=TEXT, created=FLAG, config=ref("Config")),
    "Topic": _data(
        "topic type head_seq earliest_seq next_seq count bytes config effective_priority",
        topic=TEXT,
        type={"enum": ["log", "queue", "space"]},
        head_seq=U64,
        earliest_seq=U64,
        next_seq=U64,
        count=U64,
        bytes=U64,
        config=ref("Config"),
        effective_priority={"type": "integer"},
        last_write_ts=nullable(U64),
        last_read_ts=nullable(U64),
        queue=obj(ready=U64, in_flight=U64, dead_lettered=U64),
    ),
    "TopicList": _data("topics", topics=listed({"type": "object"}), next_cursor=TEXT),
    "TopicDeleted": _data(
        "topic deleted routers_removed", topic=TEXT, deleted=FLAG, routers_removed=listed(TEXT)
    ),
    "Read": obj(
        from_seq=U64,
        limit=U32,
        node=_NODES,
        include_tags=FLAG,
        include_meta=FLAG,
        wait_ms={"type": "integer", "minimum": 0, "maximum": 30_000},
        max_batch_bytes=U64,
        epoch=U64,
        tag=ref("Predicate"),
        from_ts=U64,
    ),
    "Diff": _data(
        "topic records next_from_seq head_seq earliest_seq caught_up tombstone lag",
        topic=TEXT,
        records=listed(ref("Record")),
        next_from_seq=U64,
        head_seq=U64,
        earliest_seq=U64,
        caught_up=FLAG,
        tombstone=nullable({"type": "object"}),
        lag=U64,
        epoch=U64,
    ),
    "Delete": obj(before_seq=U64, match=ref("Predicate")) | {"minProperties": 1},
    "Deleted": _data(
        "topic deleted earliest_seq head_seq count bytes",
        topic=TEXT,
        deleted=U64,
        earliest_seq=U64,
        head_seq=U64,
        count=U64,
        bytes=U64,
    ),
    "RouterBody": obj("source dest", **_ROUTER_FIELDS, create_dest=FLAG),
    "Router": _data(
        "router source dest guarantee",
        router=TEXT,
        created=FLAG,
        forwarded_total=U64,
        **_ROUTER_FIELDS,
    ),
    "RouterList": _data("routers", routers=listed({"type": "object"}), next_cursor=TEXT),
    "RouterDeleted": _data("router deleted", router=TEXT, deleted=FLAG),
    "Watch": obj(
        topics={
            "type": "object",
            "propertyNames": TOPIC_NAME,
            "additionalProperties": _PLACE,
            "maxProperties": 256,
        },
        prefixes=listed({"type": "string", "maxLength": 255}, maxItems=16),
        tag=ref("Predicate"),
        node=_NODES,
        limit=U32,
        max_batch_bytes=U64,
        heartbeat_ms=U64,
        include_meta=FLAG,
        include_tags=FLAG,
        include_data=FLAG,
        consistency={"enum": ["eventual", "strong"]},
    ),
    "Session": _data(
        "wid stream_url session_ttl_ms topics",
        wid=TEXT,
        stream_url=TEXT,
        session_ttl_ms=U64,
        topics={"type": "object"},
    ),
    "Claim": obj(
        "node",
        node=_WORKER,
        max=U64,
        lease_ms=U64,
    ),
    "Claimed": _data(
        "topic claimed count ready",
        topic=TEXT,
        claimed=listed({"type": "object"}),
        count=U64,
        ready=U64,
    ),
    "Ack": obj("node seqs", **_SETTLE),
    "Acked": _data(
        "topic acked skipped ready in_flight",
        topic=TEXT,
        acked=U64,
        skipped=listed(U64),
        ready=U64,
        in_flight=U64,
    ),
    "Nack": obj("node seqs", **_SETTLE, delay_ms=U64),
    "Nacked": _data(
        "topic nacked skipped ready in_flight",
        topic=TEXT,
        nacked=U64,
        skipped=listed(U64),
        ready=U64,
        in_flight=U64,
    ),
    "Extend": obj("node seqs lease_ms", **_SETTLE, lease_ms=U64),
    "Extended": _data(
        "topic extended skipped deadlines",
        topic=TEXT,
        extended=U64,
        skipped=listed(U64),
        deadlines={"type": "object", "additionalProperties": U64},
    ),
    **SPACES,
    "Health": obj("status version uptime_ms", status={"const": "ok"}, version=TEXT, uptime_ms=U64),
    "Ready": obj(
        "status wal_replay_complete topics",
        status={"const": "ready"},
        wal_replay_complete={"const": True},
        topics=U64,
    ),
    "Metrics": {"type": "object"},
    "Scheduler": _data(""),
    "OpenApi": {"type": "object"},
}
