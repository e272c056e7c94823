"""1.3 Routers, and what they do with records."""

from __future__ import annotations

import base64
import functools
import itertools
import json

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import at, at_once, done, payloads, router_at, seqs, until

DEFAULTS = {
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}


@pytest.fixture
def dest(name):
    return name()


@pytest.fixture
def router(name):
    return name()


@row("1.3 PUT")
def test_a_new_router_is_201_and_echoes_its_config(api, topic, dest, router):
    body = expect.success(
        api.put(router_at(router), {"source": topic, "dest": dest}), expect.PUT_ROUTER, 201
    )
    body.pop("performance")
    wanted = {"router": router, "created": True, "source": topic, "dest": dest, **DEFAULTS}
    assert body == wanted


@row("1.3 PUT")
def test_a_known_router_is_200_and_takes_the_new_options(api, topic, dest, router):
    api.route(router, topic, dest)
    options = {"preserve_node": False, "preserve_tag": False, "filter": "a*"}
    body = expect.success(
        api.put(router_at(router), {"source": topic, "dest": dest, **options}), expect.PUT_ROUTER
    )
    assert body["created"] is False
    assert (body["preserve_node"], body["preserve_tag"]) == (False, False)
    assert body["filter"] == ["tag", "Glob", "a*"]


@row("1.3 PUT", "1.2 predicate")
@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("a", ["tag", "Eq", "a"]),
        ("a*", ["tag", "Glob", "a*"]),
        (["tag", "Eq", "a*"], ["tag", "Eq", "a*"]),
        (["tag", "Glob", "a*"], ["tag", "Glob", "a*"]),
        (None, None),
    ],
)
def test_a_filter_is_echoed_as_three_words(api, topic, dest, router, given, echoed):
    assert api.route(router, topic, dest, filter=given)["filter"] == echoed
    assert done(api.get(router_at(router)))["filter"] == echoed


@row("1.3 PUT errors")
@pytest.mark.parametrize(
    "change",
    [
        {"source": None},
        {"dest": None},
        {"source": 5},
        {"source": "_bad"},
        {"dest": "a b"},
        {"dest": ""},
        {"filter": "a*b"},
        {"filter": ["tag", "Glob", "a"]},
        {"filter": 5},
        {"guarantee": "maybe"},
        {"preserve_node": "yes"},
        {"allow_cycle": 1},
        {"create_dest": "no"},
    ],
)
def test_a_bad_router_is_400_and_makes_nothing(api, topic, dest, router, change):
    body = {"source": topic, "dest": dest, **change}
    body = {key: value for key, value in body.items() if value is not None}
    expect.refusal(api.put(router_at(router), body), 400, "invalid_request")
    expect.refusal(api.get(router_at(router)), 404, "router_not_found", {"router": router})
    for each in (topic, dest):
        expect.refusal(api.get(at(each)), 404, "topic_not_found")


@row("1.3 PUT errors")
def test_a_router_into_its_own_source_is_400(api, topic, router):
    body = {"source": topic, "dest": topic}
    expect.refusal(api.put(router_at(router), body), 400, "invalid_request")


@row("1.3 create_dest")
def test_the_topics_of_a_router_are_created(api, topic, dest, router):
    api.route(router, topic, dest)
    assert api.state(topic)["config"] == api.state(dest)["config"] == expect.CONFIG_DEFAULTS


@row("1.3 create_dest")
def test_a_router_may_insist_on_an_existing_dest(api, topic, dest, router):
    body = {"source": topic, "dest": dest, "create_dest": False}
    answer = api.put(router_at(router), body)
    expect.refusal(answer, 404, "topic_not_found", {"topic": dest})
    expect.refusal(api.get(router_at(router)), 404, "router_not_found")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")
    api.make(dest)
    assert api.put(router_at(router), body).status == 201


@row("1.3 cycle")
def test_a_cycle_is_refused_with_its_path(api, topic, name):
    a, b, c = topic, name(), name()
    api.route(name(), a, b)
    api.route(name(), b, c)
    closing = name()
    answer = api.put(router_at(closing), {"source": c, "dest": a})
    expect.refusal(answer, 409, "router_cycle", {"cycle": [c, a, b, c]})
    expect.refusal(api.get(router_at(closing)), 404, "router_not_found")
    answer = api.put(router_at(closing), {"source": b, "dest": a})
    expect.refusal(answer, 409, "router_cycle", {"cycle": [b, a, b]})


@row("1.3 cycle", "2 router hops")
def test_an_allowed_cycle_ends_after_eight_hops(api, topic, name):
    other = name()
    api.route(name(), topic, other)
    body = api.route(name(), other, topic, allow_cycle=True)
    assert body["allow_cycle"] is True
    api.write(topic, "round")
    until(
        lambda: (api.state(topic)["head_seq"], api.state(other)["head_seq"]) == (5, 4),
        "eight hops",
    )
    api.write(topic, "again")
    until(
        lambda: (api.state(topic)["head_seq"], api.state(other)["head_seq"]) == (10, 8),
        "eight hops again",
    )


@row("2 router hops")
def test_a_chain_forwards_eight_times_and_no_further(api, topic):
    chain = [f"{topic}:{number}" for number in range(10)]
    for source, dest in itertools.pairwise(chain):
        api.route(f"{source}>", source, dest)
    api.write(chain[0], "far")
    assert payloads(api.diff(chain[8])) == ["far"], "a read drains all that feeds it"
    assert api.diff(chain[9])["records"] == []


@row("1.3 fan-in")
def test_a_dest_has_one_source(api, topic, dest, router, name):
    api.route(router, topic, dest)
    answer = api.put(router_at(name()), {"source": name(), "dest": dest})
    detail = {"topic": dest, "reason": "router_dest_fan_in"}
    expect.refusal(answer, 409, "topic_exists_incompatible", detail)
    api.delete(router_at(router))
    assert api.put(router_at(name()), {"source": name(), "dest": dest}).status == 201


@row("1.3 fan-in")
def test_a_source_may_feed_many(api, topic, name):
    dests = [name() for _ in range(3)]
    for each in dests:
        api.route(name(), topic, each)
    api.write(topic, "x")
    assert [payloads(api.diff(each)) for each in dests] == [["x"]] * 3


@row("1.3 repoint")
@pytest.mark.parametrize("end", ["source", "dest"])
def test_the_ends_of_a_router_are_fixed(api, topic, dest, router, name, end):
    api.route(router, topic, dest)
    answer = api.put(router_at(router), {"source": topic, "dest": dest, end: name()})
    detail = {
        "router": router,
        "reason": "router_repoint_forbidden",
        "existing_source": topic,
        "existing_dest": dest,
    }
    expect.refusal(answer, 409, "topic_exists_incompatible", detail)
    found = done(api.get(router_at(router)))
    assert (found["source"], found["dest"]) == (topic, dest)


@row("1.3 GET")
def test_showing_a_router_first_drives_it_to_the_head(api, topic, dest, router):
    api.route(router, topic, dest, guarantee="exactly_once")
    api.write(topic, *range(7))
    body = expect.success(api.get(router_at(router)), expect.GET_ROUTER, optional={"created"})
    assert body["forwarded_total"] == 7
    assert (body["router"], body["guarantee"]) == (router, "exactly_once")


@row("1.3 GET")
def test_an_absent_router_is_404(api, router):
    expect.refusal(api.get(router_at(router)), 404, "router_not_found", {"router": router})


@row("1.3 list")
def test_routers_are_listed_sorted_and_filtered(api, topic, name):
    sources = [name() for _ in range(3)]
    dests = [name() for _ in range(3)]
    for index in (2, 0, 1):
        api.route(f"{topic}:{index}", sources[index], dests[index])
    body = expect.success(api.get("/v0/routers", prefix=topic), {"routers", "performance"})
    assert [found["router"] for found in body["routers"]] == [f"{topic}:{n}" for n in range(3)]
    for found in body["routers"]:
        expect.keys(found, expect.ROUTER_ROW)
    by_source = done(api.get("/v0/routers", source=sources[1]))["routers"]
    by_dest = done(api.get("/v0/routers", dest=dests[2]))["routers"]
    assert [found["router"] for found in by_source] == [f"{topic}:1"]
    assert [found["router"] for found in by_dest] == [f"{topic}:2"]
    assert by_source[0]["guarantee"] == "at_least_once"
    both = done(api.get("/v0/routers", source=sources[1], dest=dests[2]))["routers"]
    assert both == []


@row("1.3 list")
def test_routers_are_listed_page_by_page(api, topic, name):
    for index in range(3):
        api.route(f"{topic}:{index}", topic, name())
    first = done(api.get("/v0/routers", prefix=topic, page_size=2))
    cursor = first["next_cursor"]
    assert json.loads(base64.b64decode(cursor)) == {"after": f"{topic}:1"}
    last = done(api.get("/v0/routers", prefix=topic, page_size=2, cursor=cursor))
    assert [found["router"] for found in last["routers"]] == [f"{topic}:2"]
    assert "next_cursor" not in last


@row("1.3 DELETE")
def test_a_deleted_router_forwards_no_more(api, topic, dest, router):
    api.route(router, topic, dest)
    api.write(topic, 1)
    assert payloads(api.diff(dest)) == [1]
    body = expect.success(api.delete(router_at(router)), expect.DELETE_ROUTER)
    assert (body["router"], body["deleted"]) == (router, True)
    api.write(topic, 2)
    assert payloads(api.diff(dest)) == [1]
    assert expect.success(api.delete(router_at(router)), expect.DELETE_ROUTER)["deleted"] is False


@row("2 router start")
def test_a_router_starts_at_the_head_of_its_source(api, topic, dest, router):
    api.write(topic, "old")
    api.route(router, topic, dest)
    api.write(topic, "new")
    assert payloads(api.diff(dest)) == ["new"]


@row("2 router start")
def test_putting_a_router_again_keeps_its_cursor(api, topic, dest, router):
    api.route(router, topic, dest)
    api.write(topic, 1, 2)
    api.route(router, topic, dest)
    api.write(topic, 3)
    assert payloads(api.diff(dest)) == [1, 2, 3]
    assert done(api.get(router_at(router)))["forwarded_total"] == 3


@row("2 router reads")
def test_every_kind_of_read_of_the_dest_sees_the_write(api, topic, name):
    for number in range(5):
        dest = name()
        api.make(dest, type="queue")
        router = name()
        api.route(router, topic, dest)
        api.write(topic, number)
        if number == 0:
            assert api.state(dest)["head_seq"] == 1
        elif number == 1:
            assert payloads(api.diff(dest)) == [number]
        elif number == 2:
            assert [job["data"] for job in api.claim(dest)] == [number]
        elif number == 3:
            assert done(api.get(router_at(router)))["forwarded_total"] == 1
        else:
            with EventStream(api.address, api.watch(dest)) as stream:
                assert stream.records(1)[0]["data"] == number


@row("2 router copies")
def test_copies_have_their_own_seqs_and_keep_the_rest(api, topic, dest, router):
    api.write(topic, "before", "before")
    api.write(dest, "own")
    api.route(router, topic, dest)
    body = {"records": [{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}]}
    done(api.post(at(topic), body))
    copy = api.diff(dest, 1, include_tags=True)["records"][0]
    original = api.diff(topic, 2)["records"][0]
    assert copy.pop("$ts") >= original["$ts"]
    assert copy == {"$seq": 2, "$node": "n", "$tag": "t", "data": {"a": 1}, "meta": {"m": 1}}


@row("2 router copies")
def test_copies_lose_node_and_tag_on_request(api, topic, dest, router):
    api.route(router, topic, dest, preserve_node=False, preserve_tag=False)
    body = {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}]}
    done(api.post(at(topic), body))
    [copy] = api.diff(dest, include_tags=True)["records"]
    assert set(copy) == {"$seq", "$ts", "data", "meta"}


@row("2 router filter")
def test_a_filter_lets_only_matching_tags_through(api, topic, dest, router):
    api.route(router, topic, dest, filter="a*")
    for tag in ("a", "b", "ab"):
        api.write(topic, tag, tag=tag)
    api.write(topic, "untagged")
    assert payloads(api.diff(dest)) == ["a", "ab"]
    assert seqs(api.diff(dest)) == [1, 2]


@row("2 router filter", "2 router backpressure")
def test_records_deleted_before_they_were_forwarded_are_passed_over(api, topic, dest, router):
    api.make(dest, cap_records=1, discard="reject")
    api.route(router, topic, dest)
    api.write(topic, "first")
    assert payloads(api.diff(dest)) == ["first"]
    api.write(topic, "gone", tag="x")
    api.write(topic, "kept")
    done(api.post(at(topic, "delete"), {"match": "x"}))
    api.make(dest, cap_records=0)
    until(lambda: payloads(api.diff(dest)) == ["first", "kept"], "forwarding")
    assert api.diff(dest)["tombstone"] is None


@row("2 router backpressure")
def test_a_full_dest_holds_the_router_and_refuses_no_write_to_the_source(api, topic, dest, router):
    api.make(dest, cap_records=2, discard="reject")
    api.route(router, topic, dest)
    api.write(topic, *range(5))
    assert payloads(api.diff(dest)) == [0, 1]
    assert done(api.get(router_at(router)))["forwarded_total"] == 2
    for expected in ([2, 3], [4]):
        done(api.post(at(dest, "delete"), {"before_seq": 2**40}))
        until(lambda wanted=expected: payloads(api.diff(dest)) == wanted, "the next two")


@row("2 router exactly_once")
def test_an_exactly_once_copy_says_where_it_is_from(api, topic, dest, router):
    api.route(router, topic, dest, guarantee="exactly_once")
    api.write(topic, 1, meta={"own": True})
    api.write(topic, 2)
    first, second = api.diff(dest)["records"]
    assert first["meta"]["own"] is True
    assert set(first["meta"]) == {"own", "_topics_router"}
    origin = first["meta"]["_topics_router"]
    assert set(origin) == {
        "idempotency_key",
        "router",
        "source_topic",
        "source_topic_id",
        "source_epoch",
        "source_seq",
    }
    assert (origin["router"], origin["source_topic"], origin["source_seq"]) == (router, topic, 1)
    assert second["meta"]["_topics_router"]["source_seq"] == 2
    assert second["meta"]["_topics_router"]["idempotency_key"] != origin["idempotency_key"]


@row("2 router exactly_once")
def test_a_full_meta_moves_aside(api, topic, dest, router):
    api.route(router, topic, dest, guarantee="exactly_once")
    full = {f"k{number}": number for number in range(64)}
    api.write(topic, 1, meta=full)
    [copy] = api.diff(dest)["records"]
    assert set(copy["meta"]) == {"_topics_router", "_topics_original_meta"}
    assert copy["meta"]["_topics_original_meta"] == full


@row("2 router exactly_once")
def test_an_at_least_once_copy_keeps_its_meta_as_it_was(api, topic, dest, router):
    api.route(router, topic, dest)
    api.write(topic, 1, meta={"own": 1})
    api.write(topic, 2)
    first, second = api.diff(dest)["records"]
    assert first["meta"] == {"own": 1}
    assert "meta" not in second


@row("2 delete never propagates")
def test_deleting_in_the_source_leaves_the_copies(api, topic, dest, router):
    api.route(router, topic, dest)
    api.write(topic, 1, 2)
    assert payloads(api.diff(dest)) == [1, 2]
    done(api.post(at(topic, "delete"), {"before_seq": 3}))
    assert payloads(api.diff(dest)) == [1, 2]


@row("2 router push")
def test_a_watcher_of_the_dest_is_woken_without_any_read(api, topic, dest, router):
    api.route(router, topic, dest)
    with EventStream(api.address, api.watch(dest)) as stream:
        stream.next("caught-up")
        for number in range(3):
            api.write(topic, number)
            assert payloads(stream.next("record").data) == [number]
            stream.next("caught-up")


@row("2 router push")
def test_a_watcher_at_the_end_of_a_chain_is_woken(api, topic, name):
    middle, end = name(), name()
    api.route(name(), topic, middle)
    api.route(name(), middle, end)
    with EventStream(api.address, api.watch(end)) as stream:
        stream.next("caught-up")
        api.write(topic, "far")
        assert payloads(stream.next("record").data) == ["far"]


@row("1.3 fan-in")
def test_of_two_routers_into_one_dest_at_the_same_time_one_wins(api, dest, name):
    bodies = [{"source": name(), "dest": dest} for _ in range(4)]
    answers = at_once([functools.partial(api.put, router_at(name()), body) for body in bodies])
    assert sorted(answer.status for answer in answers) == [201, 409, 409, 409]


@row("1.3 cycle")
@pytest.mark.parametrize("length", [2, 3])
def test_routers_that_would_be_a_cycle_at_the_same_time_are_not_all_made(api, topic, length):
    for attempt in range(8):
        ring = [f"{topic}:{attempt}.{place}" for place in range(length)]
        calls = [
            functools.partial(api.put, router_at(f"{source}>"), {"source": source, "dest": dest})
            for source, dest in zip(ring, [*ring[1:], ring[0]], strict=True)
        ]
        assert sorted(answer.status for answer in at_once(calls)) == [201] * (length - 1) + [409]


@row("2 router reads", "2 router copies")
def test_a_router_keeps_the_order_of_many_writers(api, topic, dest, router):
    api.route(router, topic, dest)
    at_once([functools.partial(_write_some, api, topic, writer) for writer in range(4)])
    assert payloads(api.diff(dest, limit=1000)) == payloads(api.diff(topic, limit=1000))
    assert api.diff(dest)["head_seq"] == 100


def _write_some(api, topic, writer):
    for number in range(25):
        api.write(topic, [writer, number])
