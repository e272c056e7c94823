"""A topic's configuration: seventeen keys, always whole, changed only by the keys that are named.

>>> config = TopicConfig().merged(parse_config({"ttl_ms": 5, "durable": True}))
>>> config.ttl_ms, config.durability, config.echo()["durable"]
(5, 'fsync', True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.protocol.errors import InvalidRequest, TopicExistsIncompatible
from penstock.topics.model import is_topic_name

U64_MAX: Final = 2**64 - 1
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
CLAIM_JITTER_MS_MAX: Final = 5_000
DURABILITIES: Final = ("ephemeral", "memory", "disk", "fsync")

Changes = Mapping[str, Any]
"""Keys to change, each checked and clamped; `durable` is already turned into `durability`."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """How a topic keeps, loses and hands out its records. 0 turns a limit off."""

    type: str = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    durability: str = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    def merged(self, changes: Changes) -> TopicConfig:
        """This configuration with the named keys changed."""
        return replace(self, **changes)

    def echo(self) -> dict[str, Any]:
        """All seventeen keys, as every answer shows them."""
        shown: dict[str, Any] = {}
        for name in self.__slots__:
            if name == "durability":
                shown["durable"] = self.durability == "fsync"
            shown[name] = getattr(self, name)
        return shown


def parse_config(body: Mapping[str, Any]) -> Changes:
    """The known keys of a request, checked and clamped; unknown keys are ignored."""
    try:
        changes = {key: _PARSERS[key](key, value) for key, value in body.items() if key in _PARSERS}
    except RecursionError:  # while a refusal shows what it found
        raise InvalidRequest("expected plain values, found arrays in arrays too deep") from None
    durable = changes.pop("durable", None)
    if durable is not None:
        changes.setdefault("durability", "fsync" if durable else "disk")
    if changes.get("type") == "space":
        changes.setdefault("durability", "fsync")
    return changes


def check_change(topic: str, old: TopicConfig | None, changes: Changes) -> None:
    """Refuse what a topic may not become: another type, or a queue that buries in itself."""
    wanted = changes.get("type")
    if old is not None and wanted is not None and wanted != old.type:
        raise TopicExistsIncompatible(
            f"expected topic {topic!r} to stay a {old.type}, found a request for a {wanted}",
            topic=topic,
            existing_type=old.type,
            requested_type=wanted,
        )
    new = (old or TopicConfig()).merged(changes)
    if new.type == "queue" and new.dead_letter == topic:
        raise InvalidRequest(
            f"expected dead letters of {topic!r} to go to another topic, found itself",
            dead_letter=topic,
        )
    if new.type == "space" and new.durability != "fsync":
        raise InvalidRequest(
            f"expected durability fsync for {topic!r}, since no commit of a space may be lost, "
            f"found {new.durability}"
        )


def clamp_lease_ms(lease_ms: int) -> int:
    """A lease between a tenth of a second and a day."""
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)


def parse_u64(key: str, value: Any) -> int:
    """A whole number that fits 64 bits, or `InvalidRequest`."""
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise InvalidRequest(f"expected {key} to be a whole number from 0 on, found {value!r}")
    return value


def parse_bool(key: str, value: Any) -> bool:
    """A JSON boolean, or `InvalidRequest`."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"expected {key} to be true or false, found {value!r}")
    return value


def parse_choice(key: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of a few words, or `InvalidRequest`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"expected {key} to be one of {', '.join(choices)}, found {value!r}")
    return value


def _priority(key: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not -(2**31) <= value < 2**31):
        raise InvalidRequest(f"expected {key} to be a whole number or null, found {value!r}")
    return value


def _dead_letter(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"expected {key} to be a topic name or null, found {value!r}")
    if not is_topic_name(value):
        raise InvalidRequest(
            f"expected {key} to be a valid topic name, found {value!r}", dead_letter=value
        )
    return value


def _choice(*choices: str) -> Callable[[str, Any], str]:
    return lambda key, value: parse_choice(key, value, choices)


_PARSERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "type": _choice("log", "queue", "space"),
    "ttl_ms": parse_u64,
    "cap_records": parse_u64,
    "cap_bytes": parse_u64,
    "discard": _choice("old", "reject"),
    "durable": parse_bool,
    "durability": _choice(*DURABILITIES),
    "priority": _priority,
    "auto_priority": parse_bool,
    "auto_create": parse_bool,
    "idempotency_window_ms": parse_u64,
    "dedupe_node": parse_bool,
    "lease_ms": lambda key, value: clamp_lease_ms(parse_u64(key, value)),
    "claim_jitter_ms": lambda key, value: min(parse_u64(key, value), CLAIM_JITTER_MS_MAX),
    "max_deliveries": parse_u64,
    "dead_letter": _dead_letter,
    "leases_durable": parse_bool,
}
