"""The configuration of a topic: a field here is a key of the protocol, everywhere.

Validation, the OpenAPI document, the options of `penstock topic create`, the keywords of the client
and the answers are generated from `TopicConfig`. A configuration is always complete; a change names
only the keys to change.

>>> config = TopicConfig().merged(parse_config({"ttl_ms": 5, "durable": True}))
>>> config.ttl_ms, config.durability, config.durable
(5, 'fsync', True)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct, structs

from penstock.protocol.errors import InvalidRequest, ReservedName, TopicExistsIncompatible
from penstock.protocol.limits import CLAIM_JITTER_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN
from penstock.protocol.values import I32, U64, Schema, TopicName, check, is_reserved

TYPES: Final = ("log", "queue", "space")
DISCARDS: Final = ("old", "reject")
DURABILITIES: Final = ("ephemeral", "memory", "disk", "fsync")

Changes = Mapping[str, Any]
"""Keys to change, each checked and clamped; `durable` is already converted to `durability`."""


class TopicConfig(Struct, frozen=True, kw_only=True):
    """How a topic retains, discards and delivers its records. 0 turns a limit off.

    A field must have a default, so that a client understands an older server without it.
    Enumerations are strings here and checked by `parse_config`: a newer server may know more
    values.
    """

    type: Annotated[
        str, Meta(description="What the topic is.", extra_json_schema={"enum": list(TYPES)})
    ] = "log"
    ttl_ms: Annotated[
        U64, Meta(description="How long records are kept, in ms; 0 keeps them for ever.")
    ] = 0
    cap_records: Annotated[U64, Meta(description="Records kept at most; 0 keeps all.")] = 0
    cap_bytes: Annotated[U64, Meta(description="Bytes kept at most; 0 keeps all.")] = 0
    discard: Annotated[
        str,
        Meta(
            description="What gives way at a cap: the oldest records, or the new write.",
            extra_json_schema={"enum": list(DISCARDS)},
        ),
    ] = "old"
    durable: Annotated[
        bool, Meta(description="Short for a durability: true is fsync, false is disk.")
    ] = False
    durability: Annotated[
        str,
        Meta(description="What a write waits for.", extra_json_schema={"enum": list(DURABILITIES)}),
    ] = "disk"
    priority: Annotated[
        I32 | None, Meta(description="The highest is served first; null counts as 0.")
    ] = None
    auto_priority: Annotated[
        bool, Meta(description="Whether recent readers raise the priority.")
    ] = True
    auto_create: Annotated[
        bool,
        Meta(description="Whether the write that brings this configuration may create the topic."),
    ] = True
    idempotency_window_ms: Annotated[
        U64, Meta(description="How long idempotency keys are remembered, in ms.")
    ] = 120_000
    dedupe_node: Annotated[
        bool, Meta(description="Whether a reader that names nodes is spared their records.")
    ] = True
    lease_ms: Annotated[
        U64,
        Meta(
            description="Queue: how long a claimed job belongs to its claimer, in ms.",
            extra={"clamp": (LEASE_MS_MIN, LEASE_MS_MAX)},
        ),
    ] = 30_000
    claim_jitter_ms: Annotated[
        U64,
        Meta(
            description="Queue: claims are spread over so many ms.",
            extra={"clamp": (0, CLAIM_JITTER_MS_MAX)},
        ),
    ] = 0
    max_deliveries: Annotated[
        U64, Meta(description="Queue: how often a job is handed out at most; 0 is no limit.")
    ] = 0
    dead_letter: Annotated[
        TopicName | None, Meta(description="Queue: the topic that gets jobs which were given up.")
    ] = None
    leases_durable: Annotated[
        bool, Meta(description="Queue: whether leases survive a restart.")
    ] = False

    def __post_init__(self) -> None:
        structs.force_setattr(self, "durable", self.durability == "fsync")

    def merged(self, changes: Changes) -> TopicConfig:
        """This configuration with the named keys changed."""
        return structs.replace(self, **changes)


class ConfigField(NamedTuple):
    """A key of the configuration, for programs that are generated from it."""

    name: str
    shape: Schema
    """The JSON Schema of its value."""
    default: Any
    clamp: tuple[int, int] | None = None
    """Values outside of these are clamped."""


@cache
def config_fields(config: type[Struct] = TopicConfig) -> dict[str, ConfigField]:
    """The keys of a configuration by name, in field order."""
    shapes = msgspec.json.schema(config)["$defs"][config.__name__]["properties"]
    found = {}
    info = msgspec.inspect.type_info(config)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        extra = getattr(field.type, "extra", None) or {}
        shape = shapes[field.name]
        found[field.name] = ConfigField(field.name, shape, field.default, extra.get("clamp"))
    return found


def parse_config(body: Mapping[str, Any], config: type[Struct] = TopicConfig) -> Changes:
    """The known keys of a request, checked and clamped; unknown keys are ignored."""
    known = config_fields(config)
    try:
        changes = {key: _value(known[key], value) for key, value in body.items() if key in known}
    except RecursionError:  # raised while the refusal formats what it found
        raise InvalidRequest(
            "the configuration is nested too deeply: its values are plain"
        ) from None
    durable = changes.pop("durable", None)
    if durable is not None:
        changes.setdefault("durability", "fsync" if durable else "disk")
    if changes.get("type") == "space":
        changes.setdefault("durability", "fsync")
    return changes


def check_change(topic: str, old: TopicConfig | None, changes: Changes) -> None:
    """Refuse an invalid change: another type, or a topic as its own dead letter."""
    wanted = changes.get("type")
    if old is not None and wanted is not None and wanted != old.type:
        raise TopicExistsIncompatible(
            f"topic {topic!r} is a {old.type} and cannot become a {wanted}: choose another name",
            topic=topic,
            existing_type=old.type,
            requested_type=wanted,
        )
    new = (old or TopicConfig()).merged(changes)
    if new.type == "queue" and new.dead_letter == topic:
        raise InvalidRequest(
            f"{topic!r} cannot be its own dead_letter: name another topic",
            dead_letter=topic,
        )
    if new.dead_letter is not None and is_reserved(new.dead_letter):
        raise ReservedName(new.dead_letter)
    if new.type == "space" and new.durability != "fsync":
        raise InvalidRequest(
            f"{topic!r} is a space, of which no commit may be lost: "
            f"its durability must be fsync, not {new.durability}"
        )


def _value(field: ConfigField, value: Any) -> Any:
    found = check(field.name, value, field.shape)
    if field.clamp is not None:
        least, most = field.clamp
        return min(max(found, least), most)
    return found
