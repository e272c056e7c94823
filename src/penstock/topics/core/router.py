"""Routers: which topic feeds which, and the position of each.

A destination has one source, and chains of routers have no cycles unless allowed. A router starts
at its source's head and keeps its position when it is put again. Its changes are in the log of its
destination, so that logs can be replayed one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct

from penstock.protocol.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
)
from penstock.protocol.limits import TopicLimits
from penstock.protocol.values import check_topic_name, is_router_name, parse_bool, parse_choice
from penstock.topics.core.entries import Feed
from penstock.topics.core.predicate import Predicate, parse_predicate

GUARANTEES: Final = ("at_least_once", "exactly_once")


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What a router copies, from where to where."""

    name: str
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Predicate | None = None
    allow_cycle: bool = False
    guarantee: str = "at_least_once"

    def echo(self) -> dict[str, Any]:
        """The fields in every answer."""
        return {
            "router": self.name,
            "source": self.source,
            "dest": self.dest,
            "preserve_node": self.preserve_node,
            "preserve_tag": self.preserve_tag,
            "filter": self.filter.serialised() if self.filter else None,
            "allow_cycle": self.allow_cycle,
            "guarantee": self.guarantee,
        }


@dataclass(frozen=True, slots=True)
class Router:
    """A router and its position: the last seq of its source that it has processed."""

    config: RouterConfig
    source_epoch: int
    source_seq: int
    forwarded_total: int = 0


class RouterPut(Struct, frozen=True, array_like=True, tag="r"):
    """Entry: a router was created or replaced. Its start counts only if it is new."""

    config: RouterConfig
    source_epoch: int
    source_seq: int


class RouterRemoved(Struct, frozen=True, array_like=True, tag="u"):
    """Entry: a router was removed. Its destination tells it from later ones of the same name."""

    router: str
    dest: str


RouterEntry = RouterPut | RouterRemoved


class RouterTable:
    """Every router of a node, and the rules between them.

    A name has one router. During replay of several logs it may have several, one per destination:
    the removal of one may be in a log that is replayed after the creation of the next.
    """

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self._limits = limits or TopicLimits()
        self._routers: dict[_Key, Router] = {}
        self._by_name: dict[str, dict[_Key, None]] = {}
        self.by_source: dict[str, dict[_Key, None]] = {}
        self._by_dest: dict[str, dict[_Key, None]] = {}

    def get(self, name: str) -> Router:
        """The router with a name, or `RouterNotFound`."""
        router = self.find(name)
        if router is None:
            raise RouterNotFound(name)
        return router

    def find(self, name: str) -> Router | None:
        """The router with a name, or None."""
        for key in self._by_name.get(name, ()):
            return self._routers[key]
        return None

    def fed_by(self, source: str) -> list[Router]:
        """The routers that copy from a topic."""
        return [self._routers[key] for key in self.by_source.get(source, ())]

    def feeders_of(self, dest: str) -> list[Router]:
        """The routers that copy into a topic; all have the same source."""
        return [self._routers[key] for key in self._by_dest.get(dest, ())]

    def touching(self, topic: str) -> list[str]:
        """The routers that are removed with a topic, sorted by name."""
        keys = {*self.by_source.get(topic, ()), *self._by_dest.get(topic, ())}
        return sorted(name for name, _ in keys)

    def __iter__(self) -> Iterator[Router]:
        """Every router, sorted by name."""
        return (self._routers[key] for key in sorted(self._routers))

    def __len__(self) -> int:
        return len(self._routers)

    def check(self, config: RouterConfig) -> bool:
        """Refuse an invalid router. Returns True if it would be new."""
        old = self.find(config.name)
        if old is not None and (old.config.source, old.config.dest) != (config.source, config.dest):
            raise TopicExistsIncompatible(
                f"expected router {config.name!r} to keep its ends, found others asked for",
                router=config.name,
                reason="router_repoint_forbidden",
                existing_source=old.config.source,
                existing_dest=old.config.dest,
            )
        is_as_before = old is not None and not old.config.allow_cycle
        if not (config.allow_cycle or is_as_before):  # a cycle closed by a later router is allowed
            self._check_cycle(config)
        for other in self.feeders_of(config.dest):
            if other.config.source != config.source:
                raise TopicExistsIncompatible(
                    f"expected one source for topic {config.dest!r}, "
                    f"found router {other.config.name!r} to feed it",
                    topic=config.dest,
                    reason="router_dest_fan_in",
                )
        if old is None and 0 < self._limits.routers_max <= len(self._routers):
            raise Throttled(
                f"expected fewer than {self._limits.routers_max} routers, found as many",
                limit="max_routers",
                max=self._limits.routers_max,
            )
        return old is None

    def decide_put(self, config: RouterConfig, source_epoch: int, head_seq: int) -> RouterPut:
        """Decide a router whose source has this epoch and head, where a new one starts."""
        is_new = self.check(config)
        return RouterPut(config, source_epoch, head_seq) if is_new else RouterPut(config, 0, 0)

    def decide_removal(self, name: str) -> RouterRemoved | None:
        """Decide to remove a router; None if it does not exist."""
        router = self.find(name)
        return None if router is None else RouterRemoved(name, router.config.dest)

    def apply(self, entry: RouterEntry) -> bool:
        """Apply the next durable entry. Returns True if it created or removed a router.

        Routers are changed one at a time, while their partition is held, so none is ever staged.
        """
        match entry:
            case RouterPut():
                return self._put(entry, entry.config)
            case RouterRemoved():
                return self._remove((entry.router, entry.dest))

    def apply_feed(self, feed: Feed, dest: str, forwarded: int) -> None:
        """Advance the router's position: a feed reached the destination. It never goes back."""
        key = (feed.router, dest)
        router = self._routers.get(key)
        if router is None or feed.source_epoch != router.source_epoch:
            return
        self._routers[key] = replace(
            router,
            source_seq=max(router.source_seq, feed.source_seq),
            forwarded_total=router.forwarded_total + forwarded,
        )

    def restore(self, router: Router) -> None:
        """Add a router with its position from a snapshot."""
        key = _key(router.config)
        self._routers[key] = router
        for index, end in self._indexes(router.config):
            index.setdefault(end, {})[key] = None

    def _check_cycle(self, config: RouterConfig) -> None:
        """Walk up from the source, which has at most one feeder, and look for the destination."""
        path, seen = [config.source], {config.source}
        while path[-1] != config.dest:
            feeder = next(iter(self.feeders_of(path[-1])), None)
            if feeder is None or feeder.config.source in seen:
                return
            path.append(feeder.config.source)
            seen.add(feeder.config.source)
        raise RouterCycle([config.source, *reversed(path)])

    def _put(self, entry: RouterPut, config: RouterConfig) -> bool:
        old = self._routers.get(_key(config))
        if old is not None:
            self._routers[_key(config)] = replace(old, config=config)
            return False
        self.restore(Router(config, entry.source_epoch, entry.source_seq))
        return True

    def _remove(self, key: _Key) -> bool:
        old = self._routers.pop(key, None)
        if old is None:
            return False
        for index, end in self._indexes(old.config):
            del index[end][key]
            if not index[end]:
                del index[end]
        return True

    def _indexes(self, config: RouterConfig) -> tuple[tuple[dict[str, dict[_Key, None]], str], ...]:
        """The indexes of a router, each with its key."""
        return (
            (self._by_name, config.name),
            (self.by_source, config.source),
            (self._by_dest, config.dest),
        )


_Key = tuple[str, str]
"""Name and destination of a router."""


def _key(config: RouterConfig) -> _Key:
    return config.name, config.dest


def parse_router(name: Any, body: dict[str, Any]) -> RouterConfig:
    """Parse a router's definition; a wrong name, type or filter is `InvalidRequest`."""
    if not is_router_name(name):
        raise InvalidRequest(
            f"expected a router name of 1 to 255 of A-Z a-z 0-9 . _ : > -, found {name!r}"
        )
    source, dest = check_topic_name(body.get("source")), check_topic_name(body.get("dest"))
    if source == dest:
        raise InvalidRequest(f"expected source and dest to differ, found {source!r} for both")
    raw_filter = body.get("filter")
    return RouterConfig(
        name,
        source,
        dest,
        parse_bool("preserve_node", body.get("preserve_node", True)),
        parse_bool("preserve_tag", body.get("preserve_tag", True)),
        None if raw_filter is None else parse_predicate(raw_filter),
        parse_bool("allow_cycle", body.get("allow_cycle", False)),
        parse_choice("guarantee", body.get("guarantee", "at_least_once"), GUARANTEES),
    )
