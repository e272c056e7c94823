"""3 Spaces: commits, entities, and what refuses a commit."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import Api, at, at_once, done, payloads, records, seqs

ACCEPTED = {"seq", "ts", "replayed", "epoch", "performance"}
ENTITY = {"entity", "seq", "doc", "head", "performance"}


def space_at(space, *more):
    return "/".join(["/v0/spaces", space, *more])


def entity_at(space, entity, *more):
    return space_at(space, "entities", entity, *more)


class Sender:
    """Commits of one session, numbered from 1 on."""

    def __init__(self, api, space, session="s"):
        self.api, self.space, self.session = api, space, session
        self.local_seq = 0

    def post(self, *writes, **fields):
        """Send the next commit; its number is used up only if it is accepted."""
        body = {"session": self.session, "local_seq": self.local_seq + 1, "writes": writes}
        answer = self.api.post(space_at(self.space, "commits"), body | fields)
        self.local_seq += answer.status == 200
        return answer

    def done(self, *writes, **fields):
        """The seq of a commit that must be accepted."""
        return done(self.post(*writes, **fields))["seq"]


def put(entity, document):
    return {"entity": entity, "set": document}


def patch(entity, document):
    return {"entity": entity, "patch": document}


def delete(entity):
    return {"entity": entity, "delete": True}


def read(entity, seq, path="", **fields):
    return {"entity": entity, "seq": seq, **({"path": path} if path else {}), **fields}


def document(api, space, entity, **query):
    return done(api.get(entity_at(space, entity), **query))["doc"]


@pytest.fixture
def mine(api, topic):
    """A session in a space with two entities, at seqs 1 and 2."""
    sender = Sender(api, topic)
    sender.done(put("e", {"a": {"b": 1, "c": 1}, "l": [1]}))
    sender.done(put("f", 5))
    return sender


@pytest.fixture
def other(api, topic):
    """Another session in the same space."""
    return Sender(api, topic, "t")


@row("3 commit")
def test_a_commit_makes_its_space_and_is_one_record(api, topic):
    mine = Sender(api, topic)
    answer = expect.success(mine.post(put("e", 1), put("f", 2)), ACCEPTED)
    assert (answer["seq"], answer["replayed"]) == (1, False)
    assert expect.recent_ms(answer["ts"])
    state = api.state(topic)
    assert (state["type"], state["head_seq"], state["count"]) == ("space", 1, 1)
    assert state["epoch"] == answer["epoch"]
    assert mine.done(put("e", 3)) == 2


@row("3 commit writes")
def test_what_writes_make_of_documents(api, mine):
    space = mine.space
    mine.done(patch("e", {"a": {"b": None, "d": [2]}, "x": {"y": None, "z": 0}}))
    assert document(api, space, "e") == {"a": {"c": 1, "d": [2]}, "l": [1], "x": {"z": 0}}
    mine.done(patch("f", {"n": 1}), patch("g", {"new": True}), put("h", None))
    assert [document(api, space, name) for name in "fgh"] == [{"n": 1}, {"new": True}, None]
    mine.done(delete("e"), delete("never"))
    expect.refusal(api.get(entity_at(space, "e")), 404, "entity_not_found")
    mine.done(put("e", 1), patch("e", {"a": 1}), delete("f"), put("f", [0]))
    assert (document(api, space, "e"), document(api, space, "f")) == ({"a": 1}, [0])


@row("3 commit writes")
def test_a_commit_takes_effect_as_a_whole_or_not_at_all(api, mine):
    refused = mine.post(put("e", "x"), put("f", "x"), reads=[read("f", 1)])
    expect.refusal(refused, 409, "conflict")
    assert document(api, mine.space, "f") == 5
    assert api.state(mine.space)["head_seq"] == 2


@row("3 commit malformed", "1.0 unknown fields")
@pytest.mark.parametrize(
    "fields",
    [
        {"writes": []},
        {"writes": [{"entity": "e"}]},
        {"writes": [{"entity": "e", "set": 1, "delete": True}]},
        {"writes": [{"entity": "e", "set": 1, "patch": {}}]},
        {"writes": [{"set": 1}]},
        {"writes": [put("", 1)]},
        {"writes": [put("a/b", 1)]},
        {"writes": {"entity": "e"}},
        {"session": ""},
        {"session": "s" * 129},
        {"session": None},
        {"local_seq": 0},
        {"local_seq": -1},
        {"local_seq": 1.5},
        {"local_seq": "3"},
        {"local_seq": 2**63},
        {"reads": [read("e", 3)]},
        {"reads": [read("e", -1)]},
        {"reads": [read("e", 1.5)]},
        {"reads": [read("e", True)]},
        {"reads": [{"entity": "e"}]},
        {"reads": [read("e", 1, "a")]},
        {"reads": [read("e", 1, "/a~2")]},
        {"pending_reads": [{"entity": "e", "local_seq": 3}]},
        {"pending_reads": [{"entity": "e", "local_seq": 0}]},
        {"preconditions": [{}]},
        {"preconditions": [{"receipt_absent": ""}]},
        {"preconditions": [{"origin_committed": {"session": "s"}}]},
        {"preconditions": [{"receipt_absent": "r", "origin_committed": {"session": "s"}}]},
        {"event_id": ""},
        {"event_id": 5},
    ],
    ids=str,
)
def test_a_malformed_commit_is_refused_and_nothing_is_applied(api, mine, fields):
    answer = mine.post(put("e", "applied"), **fields)
    expect.refusal(answer, 400, "invalid_request")
    assert answer.json["error"]["message"]
    assert api.state(mine.space)["head_seq"] == 2
    assert document(api, mine.space, "e") != "applied"
    assert mine.done(put("e", 1), more=1) == 3  # and an unknown field does no harm


@row("3 commit malformed")
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"session":"s"}', b"[" * 5_000])
def test_what_is_no_commit_is_refused(api, topic, body):
    answer = api.post(space_at(topic, "commits"), body)
    expect.refusal(answer, 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("3 commit limits")
def test_what_is_too_large_is_refused(api, mine):
    large = "x" * (1 << 20)
    answer = mine.post(put("e", large))
    expect.refusal(answer, 400, "record_too_large")
    mine.done(put("e", {"a": "x" * 700_000}))
    answer = mine.post(patch("e", {"b": "x" * 700_000}))
    expect.refusal(answer, 400, "record_too_large")
    assert mine.done(put("s" * 255, 1), session="s" * 128) == 4
    too_many = [put(f"e{number}", 1) for number in range(257)]
    expect.refusal(mine.post(*too_many), 400, "invalid_request")
    deep = {"a": 1}
    for _ in range(300):
        deep = {"a": deep}
    expect.refusal(mine.post(put("e", deep)), 400, "invalid_request")
    assert api.state(mine.space)["head_seq"] == 4


@row("3 replay")
def test_a_commit_that_is_sent_again_gets_its_answer_again(api, mine):
    body = {"session": "r", "local_seq": 7, "writes": [patch("e", {"n": 1, "m": 2})]}
    first = done(api.post(space_at(mine.space, "commits"), body))
    mine.done(put("e", "later"))
    rewritten = b'{"writes": [{"patch": {"m": 2, "n": 1}, "entity": "e"}], '
    rewritten += b'"local_seq": 7, "session": "r"}'
    again = done(api.post(space_at(mine.space, "commits"), rewritten))
    same = ("seq", "ts", "epoch")
    assert [again[key] for key in same] == [first[key] for key in same]
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert document(api, mine.space, "e") == "later"
    assert api.state(mine.space)["head_seq"] == 4


@row("3 replay")
def test_another_payload_for_a_used_number_is_refused(api, mine):
    body = {"session": "s", "local_seq": 1, "writes": [put("e", "other")]}
    answer = api.post(space_at(mine.space, "commits"), body)
    expect.refusal(answer, 400, "protocol")
    assert document(api, mine.space, "e") != "other"


@row("3 replay")
def test_a_refused_commit_does_not_use_up_its_number(mine, other):
    expect.refusal(other.post(put("e", 1), reads=[read("e", 0)]), 409, "conflict")
    assert other.done(put("e", 2), reads=[read("e", 2)]) == 3


@row("3 receipts")
def test_a_receipt_is_for_ever(api, mine, other):
    once = {"event_id": "ev-1", "preconditions": [{"receipt_absent": "ev-1"}]}
    seq = mine.done(put("e", 1), **once)
    for _ in range(2):
        detail = {"reason": "receipt-exists", "receipt": "ev-1", "seq": seq}
        expect.refusal(other.post(put("e", 2), **once), 412, "precondition_failed", detail)
        other.done(delete("e"))
    assert other.done(put("e", 3), preconditions=[{"receipt_absent": "ev-2"}]) > seq


@row("3 origins")
def test_an_origin_must_be_a_committed_row(mine, other):
    wanted = {"origin_committed": {"session": "s", "local_seq": 3}}
    refused = other.post(put("g", 1), preconditions=[wanted])
    detail = {"reason": "origin-committed", "session": "s", "local_seq": 3}
    expect.refusal(refused, 412, "precondition_failed", detail)
    expect.refusal(mine.post(put("e", 1), reads=[read("e", 0)]), 409, "conflict")
    expect.refusal(
        other.post(put("g", 1), preconditions=[wanted]), 412, "precondition_failed", detail
    )
    mine.done(put("e", 1))
    other.done(put("g", 1), preconditions=[wanted])


@row("3 reads")
@pytest.mark.parametrize("write", [put("e", 0), delete("e"), patch("e", 7), patch("e", {"a": 0})])
@pytest.mark.parametrize("path", ["", "/a/b"])
def test_a_read_that_was_written_since_is_a_conflict(mine, other, write, path):
    seq = other.done(write)
    refused = mine.post(put("g", 1), reads=[read("e", 2, path)])
    detail = {"entity": "e", "basis": 2, "current": seq, "kind": "read"}
    expect.refusal(refused, 409, "conflict", detail)
    mine.done(put("g", 1), reads=[read("e", seq, path)])


@row("3 reads")
def test_that_there_was_nothing_is_a_read_too(api, mine, other):
    missing = api.get(entity_at(mine.space, "new"))
    head = missing.json["error"]["detail"]["head"]
    assert head == 2
    other.done(patch("new", {"x": 1}))
    refused = mine.post(put("new", 1), reads=[read("new", head, "/y")])
    expect.refusal(refused, 409, "conflict")


@row("3 reads")
def test_of_commits_at_the_same_time_on_one_basis_one_is_accepted(api, mine):
    senders = [Sender(api, mine.space, f"w{number}") for number in range(8)]
    answers = at_once(
        [
            lambda each=each: each.post(put("f", each.session), reads=[read("f", 2)])
            for each in senders
        ]
    )
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    assert document(api, mine.space, "f") in {each.session for each in senders}


@row("3 read paths")
@pytest.mark.parametrize(
    ("path", "deep", "shallow"),
    [
        ("", False, True),
        ("/a", False, True),
        ("/a/b", False, False),
        ("/a/b/x", False, False),
        ("/a/c", True, True),
        ("/l", True, True),
        ("/l/0", True, True),
        ("/nothing", True, True),
    ],
)
def test_a_patch_overlaps_at_above_and_below_a_path(mine, other, path, deep, shallow):
    other.done(patch("e", {"a": {"b": 2}}))
    for is_shallow, accepted in ((False, deep), (True, shallow)):
        answer = mine.post(put("g", 1), reads=[read("e", 2, path, shallow=is_shallow)])
        assert answer.status == (200 if accepted else 409), str(answer)


@row("3 read paths")
def test_a_patch_into_what_is_no_object_replaces_it_whole(mine, other):
    other.done(patch("e", {"l": {"x": 1}}))
    refused = mine.post(put("g", 1), reads=[read("e", 2, "/l/0")])
    expect.refusal(refused, 409, "conflict")


@row("3 read paths")
def test_reads_that_are_out_of_date_by_many_patches_are_not_missed(mine, other):
    for number in range(80):
        other.done(patch("e", {"a": {"b": number}}))
    other.done(patch("e", {"z": 1}))
    old = mine.post(put("g", 1), reads=[read("e", 2, "/a")])
    expect.refusal(old, 409, "conflict")
    mine.done(put("g", 1), reads=[read("e", 82, "/a")])


@row("3 pending reads")
def test_a_commit_may_stand_on_own_ones(mine, other):
    stands_on = {"reads": [read("e", 2)], "pending_reads": [{"entity": "e", "local_seq": 3}]}
    unconfirmed = mine.post(put("g", 1), **stands_on, local_seq=9)
    assert unconfirmed.json["error"]["detail"]["kind"] == "pending"
    expect.refusal(unconfirmed, 409, "conflict")
    mine.done(patch("e", {"a": {"b": 9}}))
    expect.refusal(mine.post(put("g", 1), reads=[read("e", 2)]), 409, "conflict")
    mine.done(put("g", 1), **stands_on)
    other.done(patch("e", {"other": 1}))
    expect.refusal(mine.post(put("g", 2), **stands_on), 409, "conflict")


@row("3 pending reads")
def test_what_came_before_the_own_commit_is_not_missed(mine, other):
    other.done(patch("e", {"a": {"c": 9}}))
    mine.done(patch("e", {"a": {"b": 9}}))
    pending = [{"entity": "e", "local_seq": 3}]
    stale = mine.post(put("g", 1), reads=[read("e", 2, "/a/c")], pending_reads=pending)
    expect.refusal(stale, 409, "conflict")
    mine.done(put("g", 1), reads=[read("e", 2, "/a/b")], pending_reads=pending)


@row("3 order")
def test_checks_come_in_their_order(api, mine, other):
    other.done(put("e", 0), event_id="ev")
    stale, pending = [read("e", 2)], [{"entity": "e", "local_seq": 2}]
    used = [{"receipt_absent": "ev"}]
    every = {"reads": stale, "pending_reads": pending, "preconditions": used}
    body = {"session": "s", "local_seq": 2, "writes": [put("f", 5)]}
    assert done(api.post(space_at(mine.space, "commits"), body))["replayed"]
    expect.refusal(mine.post(put("f", 1), **every), 412, "precondition_failed")
    del every["preconditions"]
    assert mine.post(put("f", 1), **every).json["error"]["detail"]["kind"] == "read"
    every["reads"] = [read("e", 3)]
    assert mine.post(put("f", 1), **every).json["error"]["detail"]["kind"] == "pending"


@row("3 entity")
def test_an_entity_is_told_with_its_seq(api, mine):
    mine.done(put("g", 1))
    answer = expect.success(api.get(entity_at(mine.space, "e")), ENTITY)
    assert (answer["entity"], answer["seq"], answer["head"]) == ("e", 1, 3)
    assert answer["doc"] == {"a": {"b": 1, "c": 1}, "l": [1]}


@row("3 entity")
def test_what_is_not_there_is_told_apart(api, mine, topic, name):
    api.write(plain := name(), 1)
    detail = {"space": topic, "entity": "none", "head": 2}
    expect.refusal(api.get(entity_at(topic, "none")), 404, "entity_not_found", detail)
    expect.refusal(api.get(entity_at(name(), "e")), 404, "topic_not_found")
    expect.refusal(api.get(entity_at(plain, "e")), 409, "not_a_space")
    expect.refusal(api.get(entity_at(topic, "a%20b")), 400, "invalid_request")
    expect.refusal(api.get(entity_at(topic, "none", "history")), 404, "entity_not_found", detail)


@row("3 entity at")
def test_an_entity_can_be_had_as_it_was_at_any_seq(api, mine):
    mine.done(patch("e", {"a": {"b": 2}}))
    mine.done(delete("e"))
    mine.done(patch("e", {"new": 1}))
    space = mine.space
    found = [api.get(entity_at(space, "e"), at=seq) for seq in range(6)]
    assert [answer.status for answer in found] == [404, 200, 200, 200, 404, 200]
    first = {"a": {"b": 1, "c": 1}, "l": [1]}
    second = {"a": {"b": 2, "c": 1}, "l": [1]}
    rows = [answer.json for answer in found if answer.status == 200]
    assert [row["doc"] for row in rows] == [first, first, second, {"new": 1}]
    assert [(row["seq"], row["head"]) for row in rows] == [(1, 1), (1, 2), (3, 3), (5, 5)]
    expect.refusal(api.get(entity_at(space, "e"), at=6), 400, "invalid_request")
    for wrong in ("-1", "x", "1.5"):
        expect.refusal(api.get(entity_at(space, "e"), at=wrong), 400, "invalid_request")


@row("3 entity at")
def test_what_has_left_is_told_and_the_present_stays(api, mine):
    for number in range(5):
        mine.done(patch("e", {"n": number}))
    done(api.post(at(mine.space, "delete"), {"before_seq": 5}))
    gone = api.get(entity_at(mine.space, "e"), at=4)
    expect.refusal(gone, 410, "gone", {"at": 4, "earliest_seq": 5})
    assert document(api, mine.space, "f", at=4) == 5
    assert document(api, mine.space, "e")["n"] == 4
    history = done(api.get(entity_at(mine.space, "e", "history")))
    assert ([row["seq"] for row in history["commits"]], history["complete"]) == ([5, 6, 7], False)
    mine.done(put("e", 0), reads=[read("e", 7)])
    assert document(api, mine.space, "e", at=8) == 0


@row("3 entities")
def test_entities_are_listed_as_of_one_seq(api, mine, other):
    mine.done(*(put(f"g{number}", number) for number in range(5)))
    mine.done(delete("g1"))
    space = mine.space
    whole = expect.success(
        api.get(space_at(space, "entities")), {"entities", "head", "next", "performance"}
    )
    assert [row["entity"] for row in whole["entities"]] == ["e", "f", "g0", "g2", "g3", "g4"]
    assert (whole["head"], whole["next"]) == (4, None)
    assert whole["entities"][1] == {"entity": "f", "seq": 2, "doc": 5}
    page = done(api.get(space_at(space, "entities"), prefix="g", limit=2))
    assert [row["entity"] for row in page["entities"]] == ["g0", "g2"]
    other.done(put("g3", "later"), delete("g4"), put("g9", "later"))
    rest = done(api.get(space_at(space, "entities"), prefix="g", limit=9, after=page["next"]))
    assert [(row["entity"], row["doc"]) for row in rest["entities"]] == [("g3", 3), ("g4", 4)]
    assert (rest["head"], rest["next"]) == (4, None)
    before = done(api.get(space_at(space, "entities"), at=2))
    assert [row["entity"] for row in before["entities"]] == ["e", "f"]


@row("3 entities")
@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1001}, {"after": "e"}, {"at": "x"}])
def test_a_page_that_cannot_be_is_refused(api, mine, query):
    answer = api.get(space_at(mine.space, "entities"), **query)
    expect.refusal(answer, 400, "invalid_request")


@row("3 history")
def test_the_history_of_an_entity_is_its_commits(api, mine, other):
    other.done(patch("e", {"a": None}), put("g", 1), event_id="ev")
    mine.done(delete("e"))
    answer = done(api.get(entity_at(mine.space, "e", "history"), limit=2))
    assert [row["seq"] for row in answer["commits"]] == [1, 3]
    expect.keys(answer, {"entity", "commits", "head", "next", "complete", "performance"})
    row_ = answer["commits"][1]
    assert expect.recent_ms(row_.pop("ts"))
    assert row_ == {
        "seq": 3,
        "session": "t",
        "local_seq": 1,
        "event_id": "ev",
        "writes": [patch("e", {"a": None})],
    }
    assert (answer["next"], answer["complete"], answer["head"]) == (3, True, 4)
    rest = done(api.get(entity_at(mine.space, "e", "history"), after=answer["next"]))
    assert [row["writes"] for row in rest["commits"]] == [[delete("e")]]
    assert rest["next"] is None


@row("3 stream")
def test_commits_are_records_for_diff_and_watch(api, mine, other):
    stream_path = api.watch(mine.space)
    found = api.diff(mine.space)
    assert seqs(found) == [1, 2]
    assert payloads(found)[1] == {"session": "s", "local_seq": 2, "writes": [put("f", 5)]}
    assert found["records"][0]["$node"] == "s"
    with EventStream(api.address, stream_path) as stream:
        assert seqs(stream.next("record").data) == [1, 2]
        stream.next("caught-up")
        other.done(put("e", None), delete("f"), event_id="ev")
        frame = stream.next("record").data
    assert payloads(frame) == [
        {
            "session": "t",
            "local_seq": 1,
            "writes": [put("e", None), delete("f")],
            "event_id": "ev",
        }
    ]


@row("3 apart")
def test_spaces_and_other_topics_stay_apart(api, mine, name):
    space, plain = mine.space, name()
    expect.refusal(api.post(at(space), records(1)), 409, "is_a_space", {"topic": space})
    many = {"writes": [{"topic": space, "records": [{"data": 1}]}]}
    expect.refusal(api.post("/v0/write", many), 409, "is_a_space", {"topic": space})
    expect.refusal(api.post(at(space, "claim"), {"node": "n"}), 409, "not_a_queue")
    api.write(plain, 1)
    refused = Sender(api, plain).post(put("e", 1))
    expect.refusal(refused, 409, "not_a_space", {"topic": plain})
    router = api.put(f"/v0/routers/{name()}", {"source": plain, "dest": space})
    expect.refusal(router, 409, "is_a_space", {"topic": space})
    api.route(name(), space, copy := name())
    mine.done(put("e", "copied"))
    assert [each["writes"] for each in payloads(api.diff(copy))] == [[put("e", "copied")]]
    assert api.state(space)["head_seq"] == 3


@row("3 config")
def test_a_space_is_configured_as_a_topic(api, topic, name):
    config = api.make(topic, type="space", cap_records=3)["config"]
    assert (config["type"], config["durability"], config["durable"]) == ("space", "fsync", True)
    mine = Sender(api, topic)
    for number in range(5):
        mine.done(put(f"e{number}", number))
    assert api.state(topic)["earliest_seq"] == 3
    assert document(api, topic, "e0") == 0
    for durability in ("disk", "memory", "ephemeral"):
        wrong = {"type": "space", "durability": durability}
        expect.refusal(api.put(at(name()), wrong), 400, "invalid_request")
        wrong = {"durability": durability}
        expect.refusal(api.put(at(topic), wrong), 400, "invalid_request")
    answer = api.put(at(topic), {"type": "log"})
    expect.refusal(answer, 409, "topic_exists_incompatible")


@row("3 config")
def test_a_space_that_is_made_anew_is_another(api, mine):
    first = api.state(mine.space)["epoch"]
    done(api.delete(at(mine.space)))
    expect.refusal(api.get(entity_at(mine.space, "e")), 404, "topic_not_found")
    body = {"session": "s", "local_seq": 1, "writes": [put("x", 1)]}
    answer = done(api.post(space_at(mine.space, "commits"), body))
    assert (answer["seq"], answer["replayed"]) == (1, False)
    assert answer["epoch"] > first


@row("3 scopes")
def test_which_key_may_commit_and_which_may_look(launch):
    keys = "full,reader:read,writer:write,team:read+write:team-"
    api = Api(launch(API_KEYS=keys).address)
    body = {"session": "s", "local_seq": 1, "writes": [put("e", 1)]}

    def statuses(key, space):
        mine = api.with_key(key)
        return (
            mine.post(space_at(space, "commits"), body | {"session": key or "none"}).status,
            mine.get(entity_at(space, "e")).status,
            mine.get(space_at(space, "entities")).status,
            mine.get(entity_at(space, "e", "history")).status,
        )

    assert statuses("full", "home") == (200, 200, 200, 200)
    assert statuses("reader", "home") == (403, 200, 200, 200)
    assert statuses("writer", "home") == (200, 403, 403, 403)
    assert statuses("team", "home") == (403, 403, 403, 403)
    assert statuses("team", "team-home") == (200, 200, 200, 200)
    assert statuses(None, "home") == (401, 401, 401, 401)


@row("3 caps")
def test_caps_of_the_node_hold_for_commits(launch):
    api = Api(launch(MAX_TOPICS=1, MAX_TOTAL_BYTES=2_000).address)
    mine = Sender(api, "one")
    mine.done(put("e", 1))
    answer = Sender(api, "two").post(put("e", 1))
    expect.refusal(answer, 429, "throttled", {"limit": "max_topics", "max": 1})
    answer = mine.post(put("e", "x" * 2_000))
    expect.refusal(answer, 429, "throttled", {"limit": "max_total_bytes", "max": 2_000})
    assert api.state("one")["head_seq"] == 1


@row("3 restart")
def test_everything_of_a_space_survives_a_kill(launch):
    process = launch()
    api = Api(process.address)
    mine = Sender(api, "home")
    mine.done(put("e", {"a": 1}), event_id="ev")
    mine.done(patch("e", {"b": 2}))
    mine.done(put("f", 1))
    mine.done(delete("f"))
    body = {"session": "s", "local_seq": 2, "writes": [patch("e", {"b": 2})]}
    before = done(api.post(space_at("home", "commits"), body))
    process.kill()
    process.start()
    api = Api(process.address)
    again = done(api.post(space_at("home", "commits"), body))
    assert (again["seq"], again["ts"], again["replayed"]) == (before["seq"], before["ts"], True)
    mine = Sender(api, "home", "t")
    answer = mine.post(put("e", 0), preconditions=[{"receipt_absent": "ev"}])
    expect.refusal(answer, 412, "precondition_failed")
    expect.refusal(mine.post(put("e", 0), reads=[read("f", 3)]), 409, "conflict")
    expect.refusal(
        mine.post(put("e", 0), reads=[read("e", 1, "/b")]), 409, "conflict", expect.UNCHECKED
    )
    assert document(api, "home", "e") == {"a": 1, "b": 2}
    assert document(api, "home", "f", at=3) == 1
    assert mine.done(put("e", 0), reads=[read("e", 1, "/a")]) == 5
