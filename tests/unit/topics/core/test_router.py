"""Routers: definitions, cycles, fan-in, places."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock.protocol.errors import (
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
)
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.entries import FeedMark
from penstock.topics.core.router import (
    Router,
    RouterConfig,
    RouterRemoved,
    RouterStored,
    RouterTable,
)


def table(*pairs: str, limits: TopicLimits | None = None) -> RouterTable:
    routers = RouterTable(limits)
    for pair in pairs:
        put(routers, pair)
    return routers


def put(routers: RouterTable, pair: str, **options: Any) -> bool:
    config = RouterConfig(pair, *pair.split(">"), **options)
    routers.check(config)
    return routers.apply(RouterStored(config, 1, 10))


class Counted(str):
    """A name that counts how often one is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def touching(routers: RouterTable, topic: str) -> list[str]:
    """The routers out of a topic and into it."""
    found = (*routers.fed_by(topic), *routers.feeders_of(topic))
    return sorted(router.config.name for router in found)


def test_a_chain_is_walked_in_time_that_grows_with_its_length() -> None:
    routers, names = RouterTable(), [Counted(f"t{number}") for number in range(501)]
    for source, dest in itertools.pairwise(names):
        routers.apply(RouterStored(RouterConfig(f"{source}>{dest}", source, dest), 1, 0))
    Counted.compared = 0
    assert routers.check(RouterConfig("one more", names[-1], "elsewhere"))
    assert Counted.compared < 10 * len(names)


def test_a_cycle_is_refused_with_its_path() -> None:
    routers = table("a>b", "b>c", "c>d")
    with pytest.raises(RouterCycle) as refused:
        put(routers, "d>a")
    assert refused.value.detail == {"cycle": ["d", "a", "b", "c", "d"]}
    with pytest.raises(RouterCycle) as refused:
        put(routers, "b>a")
    assert refused.value.detail == {"cycle": ["b", "a", "b"]}


def test_a_cycle_that_was_asked_for_is_allowed_and_does_not_trap_later_checks() -> None:
    routers = table("a>b")
    assert put(routers, "b>a", allow_cycle=True)
    assert put(routers, "b>c")


def test_a_router_that_another_closed_a_cycle_with_can_be_put_again() -> None:
    routers = table("a>b")
    put(routers, "b>a", allow_cycle=True)
    assert not put(routers, "a>b")
    with pytest.raises(RouterCycle):
        put(routers, "b>a")


def test_a_destination_has_one_source_though_several_routers() -> None:
    routers = table("a>x")
    with pytest.raises(TopicExistsIncompatible) as refused:
        put(routers, "b>x")
    assert refused.value.detail == {"topic": "x", "reason": "router_dest_fan_in"}
    config = RouterConfig("second", "a", "x")
    assert routers.check(config)


def test_a_router_keeps_its_ends() -> None:
    routers = table("a>b")
    with pytest.raises(TopicExistsIncompatible) as refused:
        routers.check(RouterConfig("a>b", "a", "c"))
    assert refused.value.detail == {
        "router": "a>b",
        "reason": "router_repoint_forbidden",
        "existing_source": "a",
        "existing_dest": "b",
    }


def test_putting_a_router_again_changes_it_and_keeps_its_place() -> None:
    routers = table("a>b")
    routers.apply_feed(FeedMark("a>b", 1, 30), "b", forwarded=5)
    assert put(routers, "a>b", preserve_tag=False) is False
    router = routers.get("a>b")
    assert (router.source_seq, router.forwarded_total, router.config.preserve_tag) == (30, 5, False)


def test_a_place_never_goes_back_and_belongs_to_one_life_of_the_source() -> None:
    routers = table("a>b")
    routers.apply_feed(FeedMark("a>b", 1, 30), "b", forwarded=1)
    routers.apply_feed(FeedMark("a>b", 1, 20), "b", forwarded=0)
    routers.apply_feed(FeedMark("a>b", 2, 99), "b", forwarded=9)
    routers.apply_feed(FeedMark("a>b", 1, 99), "other", forwarded=9)
    router = routers.get("a>b")
    assert (router.source_seq, router.forwarded_total) == (30, 1)


def test_the_limit_on_routers_is_for_new_ones_only() -> None:
    routers = table("a>b", limits=TopicLimits(routers_max=1))
    assert put(routers, "a>b") is False
    with pytest.raises(Throttled) as refused:
        put(routers, "c>d")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert refused.value.status == 429


def test_a_removed_router_is_gone_from_every_view() -> None:
    routers = table("a>b", "b>c")
    assert touching(routers, "b") == ["a>b", "b>c"]
    assert not routers.apply(RouterRemoved("a>b", "c"))
    assert routers.apply(RouterRemoved("a>b", "b"))
    assert not routers.apply(RouterRemoved("a>b", "b"))
    assert (touching(routers, "a"), routers.feeders_of("b"), len(routers)) == ([], [], 1)
    with pytest.raises(RouterNotFound) as refused:
        routers.get("a>b")
    assert refused.value.detail == {"router": "a>b"}


def test_routers_are_listed_by_name_and_by_either_end() -> None:
    routers = table("b>c", "a>b", "b>d")
    assert [router.config.name for router in routers] == ["a>b", "b>c", "b>d"]
    assert [router.config.dest for router in routers.fed_by("b")] == ["c", "d"]


def test_the_logs_of_two_destinations_may_be_replayed_in_any_order() -> None:
    old, new = RouterConfig("r", "a", "b"), RouterConfig("r", "x", "y")
    logs = [
        [RouterStored(old, 1, 0), RouterRemoved("r", "b")],
        [RouterStored(new, 2, 7)],
    ]
    tables = []
    for order in (logs, logs[::-1]):
        routers = RouterTable()
        for log in order:
            for entry in log:
                routers.apply(entry)
        tables.append(routers)
    for routers in tables:
        assert list(routers) == [Router(new, 2, 7)]
        assert routers.get("r") == Router(new, 2, 7)
        assert (touching(routers, "a"), touching(routers, "b")) == ([], [])
        assert (touching(routers, "x"), touching(routers, "y")) == (["r"], ["r"])
