"""The bodies of requests as structs: what a client may send, according to the OpenAPI document.

Text limits are in bytes, which JSON Schema cannot express: the schema has them as characters.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import (
    LIMITS,
    NAME_MAX,
    WAIT_MS_MAX,
    WATCH_PREFIXES_MAX,
    WATCH_TOPICS_MAX,
    WRITES_MAX,
)
from penstock.protocol.values import TOPIC_NAME, U32, U64, TopicName

PREDICATE: Final[dict[str, Any]] = {
    "description": '["tag","Eq",value], ["tag","Glob","prefix*"] or a bare string for either.',
    "anyOf": [
        {"type": "string", "pattern": r"^[^*]*\*?$"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
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

Predicate = Annotated[Any, Meta(extra_json_schema={"$ref": "#/components/schemas/Predicate"})]
Tag = Annotated[str, Meta(max_length=LIMITS.tag_bytes_max)]
Node = Annotated[str, Meta(max_length=LIMITS.node_bytes_max)]
Worker = Annotated[str, Meta(min_length=1, max_length=LIMITS.node_bytes_max)]
IdempotencyKey = Annotated[str, Meta(max_length=LIMITS.key_bytes_max)]
NewMeta = Annotated[dict[str, Any], Meta(extra_json_schema={"maxProperties": LIMITS.meta_keys_max})]
Seqs = Annotated[list[U64], Meta(max_length=LIMITS.seqs_max)]
LeaseIds = Annotated[
    list[Annotated[str, Meta(pattern="^(lease_[0-9a-fA-F]{1,64})?$")]],
    Meta(max_length=LIMITS.seqs_max),
]
Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LocalSeq = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Session = Annotated[str, Meta(min_length=1, max_length=128)]
EventId = Annotated[str, Meta(min_length=1, max_length=256)]
TableWait = Annotated[int, Meta(ge=0, le=60_000)]
Mode = Annotated[
    str, Meta(extra_json_schema={"enum": ["full", "differential", "auto", "immediate"]})
]
Consistency = Annotated[str, Meta(extra_json_schema={"enum": ["atomic", "none"]})]
TableStatusWord = Annotated[str, Meta(extra_json_schema={"enum": ["active", "paused"]})]
Unset = UnsetType


class NewRecord(Struct, kw_only=True):
    """A record to write."""

    data: Any
    tag: Tag | Unset = UNSET
    node: Node | Unset = UNSET
    meta: NewMeta | Unset = UNSET


class Write(Struct, kw_only=True):
    """Records for one topic, all of them or none."""

    records: Annotated[list[NewRecord], Meta(min_length=1, max_length=LIMITS.batch_records_max)]
    node: Node | Unset = UNSET
    idempotency_key: IdempotencyKey | Unset = UNSET
    create: bool | Unset = UNSET
    config: TopicConfig | Unset = UNSET
    disable_backpressure: bool | Unset = UNSET


class TopicWrite(Write, kw_only=True):
    """One of the writes of an atomic write."""

    topic: TopicName


class WriteMany(Struct, kw_only=True):
    """Records for several topics of one partition, all of them or none."""

    writes: Annotated[list[TopicWrite], Meta(min_length=1, max_length=WRITES_MAX)]


class Read(Struct, kw_only=True):
    """Which records a page contains, and how long to wait for them."""

    from_seq: U64 | Unset = UNSET
    limit: U32 | Unset = UNSET
    node: str | list[str] | Unset = UNSET
    include_tags: bool | Unset = UNSET
    include_meta: bool | Unset = UNSET
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] | Unset = UNSET
    max_batch_bytes: U64 | Unset = UNSET
    epoch: U64 | Unset = UNSET
    tag: Predicate = None
    from_ts: U64 | Unset = UNSET


class Delete(Struct, kw_only=True):
    """Which records to delete: those before a seq, those that match, or those that do both."""

    before_seq: U64 | Unset = UNSET
    match: Predicate = None


DeleteBody = Annotated[Delete, Meta(extra_json_schema={"minProperties": 1})]


class RouterBody(Struct, kw_only=True):
    """What a router copies, from where to where."""

    source: TopicName
    dest: TopicName
    preserve_node: bool | Unset = UNSET
    preserve_tag: bool | Unset = UNSET
    filter: Predicate = None
    allow_cycle: bool | Unset = UNSET
    guarantee: (
        Annotated[str, Meta(extra_json_schema={"enum": ["at_least_once", "exactly_once"]})] | Unset
    ) = UNSET
    create_dest: bool | Unset = UNSET


class WatchPlace(Struct, kw_only=True):
    """Where a watch begins in a topic."""

    from_seq: U64 | Unset = UNSET
    tail: bool | Unset = UNSET
    epoch: U64 | Unset = UNSET
    tag: Predicate = None


class Watch(Struct, kw_only=True):
    """Topics to push, by name or by prefix."""

    topics: (
        Annotated[
            dict[str, WatchPlace],
            Meta(
                extra_json_schema={
                    "propertyNames": {"type": "string", "pattern": TOPIC_NAME},
                    "maxProperties": WATCH_TOPICS_MAX,
                }
            ),
        ]
        | Unset
    ) = UNSET
    prefixes: (
        Annotated[
            list[Annotated[str, Meta(max_length=NAME_MAX)]], Meta(max_length=WATCH_PREFIXES_MAX)
        ]
        | Unset
    ) = UNSET
    tag: Predicate = None
    node: str | list[str] | Unset = UNSET
    limit: U32 | Unset = UNSET
    max_batch_bytes: U64 | Unset = UNSET
    heartbeat_ms: U64 | Unset = UNSET
    include_meta: bool | Unset = UNSET
    include_tags: bool | Unset = UNSET
    include_data: bool | Unset = UNSET
    consistency: (
        Annotated[str, Meta(extra_json_schema={"enum": ["eventual", "strong"]})] | Unset
    ) = UNSET


class Claim(Struct, kw_only=True):
    """How many jobs a worker wants, and for how long."""

    node: Worker
    max: U64 | Unset = UNSET
    lease_ms: U64 | Unset = UNSET


class Ack(Struct, kw_only=True):
    """Jobs that are done."""

    node: Worker
    seqs: Seqs
    lease_ids: LeaseIds | Unset = UNSET


class Nack(Ack, kw_only=True):
    """Jobs to be delivered again, after a delay."""

    delay_ms: U64 | Unset = UNSET


class Extend(Ack, kw_only=True):
    """Leases to extend."""

    lease_ms: U64


class CommitRead(Struct, kw_only=True):
    """An entity, or a part of it, that was read as of a seq."""

    entity: TopicName
    seq: Seq
    path: Annotated[str, Meta(pattern="^(/([^~]|~[01])*)?$")] | Unset = UNSET
    shallow: bool | Unset = UNSET


class PendingRead(Struct, kw_only=True):
    """An entity that was read as an earlier commit of the same session left it."""

    local_seq: LocalSeq
    entity: TopicName


class CommitWrite(Struct, kw_only=True):
    """A change of one entity: set it, patch it, or delete it."""

    entity: TopicName
    set: Any = UNSET
    patch: Any = UNSET
    delete: bool | Unset = UNSET


class Origin(Struct, kw_only=True):
    """A commit of a session."""

    session: Session
    local_seq: LocalSeq


class ReceiptAbsent(Struct, kw_only=True):
    """No commit with this event id was accepted."""

    receipt_absent: EventId


class OriginCommitted(Struct, kw_only=True):
    """The commit that this one depends on was accepted."""

    origin_committed: Origin


_ONE_OF_THREE: Final[dict[str, Any]] = {
    "oneOf": [
        {"required": ["set"]},
        {"required": ["patch"]},
        {"required": ["delete"], "properties": {"delete": {"const": True}}},
    ]
}
PRECONDITIONS: Final[dict[str, Any]] = {
    "oneOf": [
        {"$ref": "#/components/schemas/ReceiptAbsent"},
        {"$ref": "#/components/schemas/OriginCommitted"},
    ]
}


class Commit(Struct, kw_only=True):
    """Changes of entities that take effect together, if nothing that was read has changed."""

    session: Session
    local_seq: LocalSeq
    writes: Annotated[
        list[Annotated[CommitWrite, Meta(extra_json_schema=_ONE_OF_THREE)]],
        Meta(min_length=1, max_length=256),
    ]
    reads: Annotated[list[CommitRead], Meta(max_length=4_096)] | Unset = UNSET
    pending_reads: Annotated[list[PendingRead], Meta(max_length=4_096)] | Unset = UNSET
    preconditions: (
        Annotated[list[Annotated[Any, Meta(extra_json_schema=PRECONDITIONS)]], Meta(max_length=256)]
        | Unset
    ) = UNSET
    event_id: EventId | None = None


class BackupBody(Struct, kw_only=True):
    """Where a backup goes, below the server's directory of backups."""

    directory: str


class TableOptions(Struct, kw_only=True):
    """How a table is refreshed."""

    schedule: str | Unset = UNSET
    mode: Mode | Unset = UNSET
    consistency: Consistency | Unset = UNSET
    description: str | Unset = UNSET


TableChange = Annotated[TableOptions, Meta(extra_json_schema={"minProperties": 1})]


class TableBody(TableOptions, kw_only=True):
    """The definition of a table."""

    query: str
    status: TableStatusWord | Unset = UNSET


class NewTable(TableBody, kw_only=True):
    """A table that does not exist yet."""

    name: str


class RefreshBody(Struct, kw_only=True):
    """Whether to refresh even if fresh, and how long to wait for it."""

    force: bool | Unset = UNSET
    wait_ms: TableWait | Unset = UNSET


class DrainBody(Struct, kw_only=True):
    """Whether to drain, and how long to wait until no job is running."""

    draining: bool | Unset = UNSET
    wait_ms: TableWait | Unset = UNSET


class GateBody(Struct, kw_only=True):
    """A relation to close or open."""

    relation: str
    closed: bool | Unset = UNSET
    detail: str | Unset = UNSET


class SourceBody(Struct, kw_only=True):
    """The columns of a topic's records."""

    schema: str
    key: str | list[str] | Unset = UNSET
    url: str | Unset = UNSET
