"""The bodies of requests: what a client may send, decoded and described by the same structs.

`decode` checks everything that is the same for every server. Limits that an operator can set are
checked where they are known; here they are part of the OpenAPI document only. Text limits are in
bytes, which JSON Schema cannot express: the schema has them as characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import (
    LIMITS,
    NAME_MAX,
    TABLE_WAIT_MS_MAX,
    WAIT_MS_MAX,
    WATCH_PREFIXES_MAX,
    WATCH_TOPICS_MAX,
    WRITES_MAX,
)
from penstock.protocol.queues import REASON_BYTES_MAX
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


def _shown(**schema: Any) -> Meta:
    """For the OpenAPI document only."""
    return Meta(extra_json_schema=schema)


Predicate = Annotated[Any, Meta(extra_json_schema={"$ref": "#/components/schemas/Predicate"})]
Tag = Annotated[str, _shown(maxLength=LIMITS.tag_bytes_max)]
Node = Annotated[str, _shown(maxLength=LIMITS.node_bytes_max)]
Worker = Annotated[str, _shown(minLength=1, maxLength=LIMITS.node_bytes_max)]
IdempotencyKey = Annotated[str, _shown(maxLength=LIMITS.key_bytes_max)]
NewMeta = Annotated[Mapping[str, Any], _shown(maxProperties=LIMITS.meta_keys_max)]
Seqs = Annotated[list[U64], _shown(maxItems=LIMITS.seqs_max)]
Reason = Annotated[str, _shown(maxLength=REASON_BYTES_MAX)]
LeaseId = Annotated[str, _shown(pattern="^(lease_[0-9a-fA-F]{1,64})?$")]
LeaseIds = Annotated[list[LeaseId], _shown(maxItems=LIMITS.seqs_max)]
TableWait = Annotated[int, Meta(ge=0, le=TABLE_WAIT_MS_MAX)]


class Record(Struct, frozen=True, omit_defaults=True):
    """A record to be written. `bytes` (and `msgspec.Raw`) as `data` are taken as JSON text."""

    data: Any
    tag: Tag | None = None
    node: Node | None = None
    meta: NewMeta | None = None


class AppendBody(Struct, kw_only=True, omit_defaults=True):
    """Records for one topic, all of them or none.

    `penstock.topics.core.record` decodes it, without an object for each payload.
    """

    records: Annotated[list[Record], _shown(minItems=1, maxItems=LIMITS.batch_records_max)]
    node: Node | None = None
    idempotency_key: IdempotencyKey | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool | None = None


class TopicAppend(AppendBody, kw_only=True, omit_defaults=True):
    """One of the writes of an atomic write."""

    topic: TopicName


class AppendManyBody(Struct, kw_only=True):
    """Records for several topics of one partition, all of them or none."""

    writes: Annotated[list[TopicAppend], _shown(minItems=1, maxItems=WRITES_MAX)]


class DiffBody(Struct, kw_only=True, omit_defaults=True):
    """Which records a page contains, and how long to wait for them. 0 as a limit: the default."""

    from_seq: U64 = 0
    limit: U32 = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Annotated[int, Meta(ge=0, extra_json_schema={"maximum": WAIT_MS_MAX})] = 0
    max_batch_bytes: U64 = 0
    epoch: U64 | None = None
    tag: Predicate = None
    from_ts: U64 | None = None


class DeleteBody(Struct, kw_only=True, omit_defaults=True):
    """Which records to delete: those before a seq, those that match, or those that do both."""

    before_seq: U64 | None = None
    match: Predicate = None


class MemberBody(Struct, kw_only=True):
    """A new member of a cluster: its name, and where its peers reach it."""

    name: str
    address: str


class ReplaceBody(Struct, kw_only=True, omit_defaults=True):
    """The member to replace, and where its peers reach the new one, if elsewhere."""

    name: str
    address: str = ""


class TransferBody(Struct, kw_only=True):
    """Which partition's leadership goes to which member."""

    partition: Annotated[int, Meta(ge=0, le=65_535)]
    member: str


class VerifyBody(Struct, kw_only=True):
    """Which partition is compared on all members."""

    partition: Annotated[int, Meta(ge=0, le=65_535)]


class DigestBody(Struct, kw_only=True, omit_defaults=True):
    """Which partition is captured, and at which index of its log; `take` asks for the digest."""

    partition: Annotated[int, Meta(ge=0, le=65_535)]
    index: U64
    take: bool = False


class RouterBody(Struct, kw_only=True, omit_defaults=True):
    """What a router copies, from where to where."""

    source: TopicName
    dest: TopicName
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Predicate = None
    allow_cycle: bool = False
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    create_dest: bool = True


class WatchPlace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a watch begins in a topic: after a seq, or at the head."""

    from_seq: U64 | None = None
    tail: bool | None = None
    epoch: U64 | None = None
    tag: Predicate = None


class WatchBody(Struct, kw_only=True, omit_defaults=True):
    """Topics to push, by name or by prefix. Null is the default, which SSE and WebSocket choose."""

    topics: (
        Annotated[
            dict[str, WatchPlace | None],
            _shown(
                propertyNames={"type": "string", "pattern": TOPIC_NAME},
                maxProperties=WATCH_TOPICS_MAX,
            ),
        ]
        | None
    ) = None
    prefixes: (
        Annotated[
            list[Annotated[str, Meta(max_length=NAME_MAX)]], Meta(max_length=WATCH_PREFIXES_MAX)
        ]
        | None
    ) = None
    tag: Predicate = None
    node: str | list[str] | None = None
    limit: U64 | None = None
    max_batch_bytes: U64 | None = None
    heartbeat_ms: U64 | None = None
    include_meta: bool | None = None
    include_tags: bool | None = None
    include_data: bool | None = None
    consistency: Literal["eventual", "strong"] | None = None
    name: str | None = None
    """What the client calls itself, where the readers of a topic are listed."""


class Subscribe(WatchBody, kw_only=True, omit_defaults=True):
    """A watch over a WebSocket; a single topic may be named with its place."""

    topic: str | None = None
    from_seq: U64 | None = None
    tail: bool | None = None
    epoch: U64 | None = None
    lenient: bool | None = None


class Unsubscribe(Struct, kw_only=True, omit_defaults=True):
    """Topics to push no longer; all of them if none is named."""

    topic: str | None = None
    topics: list[str] | None = None


class ClaimBody(Struct, kw_only=True, omit_defaults=True):
    """How many jobs a worker wants, and for how long.

    A missing node is refused after the topic is found to be a queue, hence the default.
    """

    node: Worker = ""
    max: U64 = 0
    lease_ms: U64 | None = None


class AckBody(Struct, kw_only=True, omit_defaults=True):
    """Jobs that are done."""

    node: Worker
    seqs: Seqs
    lease_ids: LeaseIds | None = None


class NackBody(AckBody, kw_only=True, omit_defaults=True):
    """Jobs to be delivered again, after a delay."""

    delay_ms: U64 = 0
    reason: Reason = ""
    """Why they were not finished; the last one is kept with a job that dies."""


class LettersBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters of a queue: by seq, by reason ("" if they have none), or all of them."""

    seqs: Seqs | None = None
    reason: Reason | None = None
    all: bool = False


class RedriveBody(LettersBody, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters become jobs again, and of which topic; of the queue itself if not said."""

    to: TopicName | None = None


class ExtendBody(AckBody, kw_only=True, omit_defaults=True):
    """Leases to extend."""

    lease_ms: U64


class BackupBody(Struct, kw_only=True):
    """Where a backup goes, below the server's directory of backups."""

    directory: str


def node_names(node: str | list[str] | None) -> frozenset[str]:
    """The nodes whose own records a reader is spared: one name, or several."""
    if node is None:
        return frozenset()
    return frozenset((node,) if isinstance(node, str) else node)


# Tables: an unknown field is refused, because a misspelled one would change what is computed -----


class TableOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a table is refreshed. The warehouse knows which modes and schedules there are."""

    schedule: str | UnsetType = UNSET
    mode: Annotated[str, _shown(enum=["full", "differential", "auto", "immediate"])] | UnsetType = (
        UNSET
    )
    consistency: Annotated[str, _shown(enum=["atomic", "none"])] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    publish: str | UnsetType = UNSET
    """The topic that its changes are written to; empty for none."""


class TableBody(TableOptions, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The definition of a table."""

    query: str
    status: Annotated[str, _shown(enum=["active", "paused"])] | UnsetType = UNSET


class NewTableBody(TableBody, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A table that does not exist yet."""

    name: str


class RefreshBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whether to refresh even if fresh, and how long to wait for it."""

    force: bool = False
    wait_ms: TableWait = 0


class ExplainBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query that need not be a table's."""

    query: str


class QueryBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A SELECT over tables of the lake, at a snapshot; at the newest if none is named."""

    query: str
    snapshot: U64 | None = None


class DrainBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whether to drain, and how long to wait until no job is running."""

    draining: bool = True
    wait_ms: TableWait = 0


class GateBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A relation to close or open."""

    relation: Annotated[str, Meta(min_length=1)]
    closed: bool = True
    detail: str = ""


class SourceBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The columns of a topic's records."""

    schema: str
    key: str | list[str] = []
    url: str | None = None
