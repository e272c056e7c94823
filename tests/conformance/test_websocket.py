"""1.5 WebSocket: commands, replies and what is pushed."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.sockets import Socket
from tests.conformance.wire import at, blanks_outside_strings, done, payloads, seqs

ACK = expect.WRITE | {"op", "request_id"}
RECORD = {"op", "topic", "from_seq", "to_seq", "head_seq", "records"}


@pytest.fixture
def ws(server):
    with Socket(server) as socket:
        yield socket


@row("1.5 ping", "1.5 request_id")
@pytest.mark.parametrize("request_id", ["x", 7, None, [1, {"a": 2}], {"deep": True}, False, 1.5])
def test_a_ping_is_answered_with_the_same_request_id(ws, request_id):
    ws.send("ping", request_id=request_id)
    assert ws.next() == {"op": "pong", "request_id": request_id}


@row("1.5 ping", "1.5 request_id")
def test_a_request_id_that_was_not_sent_is_null(ws):
    ws.send("ping")
    assert ws.next() == {"op": "pong", "request_id": None}


@row("1.5 subscribe")
def test_a_subscription_tells_where_its_topics_stand(api, ws, topic):
    api.make(topic, cap_records=2)
    api.write(topic, 1, 2, 3)
    ws.send("subscribe", request_id="r", topic=topic, from_seq=2)
    body = ws.next("subscribed")
    expect.keys(body, {"op", "request_id", "topics"})
    expect.keys(body["topics"][topic], expect.WATCH_TOPIC)
    shown = {key: body["topics"][topic][key] for key in expect.WATCH_TOPIC}
    assert shown == {"from_seq": 2, "head_seq": 3, "earliest_seq": 2}
    assert body["request_id"] == "r"


@row("1.5 record", "1.5 caught_up")
def test_records_are_pushed_old_ones_and_new_ones(api, ws, topic):
    api.write(topic, "old")
    ws.send("subscribe", topic=topic)
    ws.next("subscribed")
    first = ws.next("record")
    expect.keys(first, RECORD)
    assert (first["topic"], first["from_seq"], first["to_seq"]) == (topic, 0, 1)
    assert (first["head_seq"], payloads(first)) == (1, ["old"])
    assert expect.told(ws.next()) == {"op": "caught_up", "topic": topic, "head_seq": 1}
    api.write(topic, "new")
    assert payloads(ws.next("record")) == ["new"]
    assert expect.told(ws.next()) == {"op": "caught_up", "topic": topic, "head_seq": 2}


@row("1.5 caught_up")
def test_an_empty_topic_is_caught_up_at_once(api, ws, topic):
    api.make(topic)
    ws.send("subscribe", topic=topic)
    ws.next("subscribed")
    assert expect.told(ws.next()) == {"op": "caught_up", "topic": topic, "head_seq": 0}


@row("1.5 subscribe")
def test_a_subscription_may_begin_at_the_end(api, ws, topic):
    api.write(topic, "old", "old")
    ws.send("subscribe", topic=topic, tail=True)
    assert ws.next("subscribed")["topics"][topic]["from_seq"] == 2
    api.write(topic, "new")
    assert [record["data"] for record in ws.records(1)] == ["new"]


@row("1.5 subscribe")
def test_many_topics_each_with_its_cursor(api, ws, topic):
    first, second = f"{topic}:a", f"{topic}:b"
    api.write(first, 1, 2)
    api.write(second, 1, 2)
    ws.send("subscribe", topics={first: {"from_seq": 1}, second: {"tail": True}})
    body = ws.next("subscribed")
    assert {name: at_["from_seq"] for name, at_ in body["topics"].items()} == {first: 1, second: 2}
    message = ws.until("record")
    assert (message["topic"], seqs(message)) == (first, [2])
    api.write(second, 3)
    message = ws.until("record")
    assert (message["topic"], seqs(message)) == (second, [3])


@row("1.5 subscribe")
def test_what_is_shown_of_a_record(api, server, topic):
    body = {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 2}}]}
    done(api.post(at(topic), body))

    def shown(**options):
        with Socket(server) as ws:
            ws.send("subscribe", topic=topic, **options)
            [record] = ws.records(1)
            return set(record)

    base = {"$seq", "$ts", "$node"}
    assert shown() == base | {"data", "meta"}
    assert shown(include_tags=True, include_meta=False) == base | {"$tag", "data"}
    assert shown(include_data=False) == base | {"meta"}


@row("1.5 subscribe", "2 node filter")
def test_a_subscriber_does_not_get_its_own_records(api, ws, topic):
    api.write(topic, "mine", node="me")
    api.write(topic, "yours", node="you")
    ws.send("subscribe", topic=topic, node="me")
    message = ws.until("record")
    assert (payloads(message), message["to_seq"]) == (["yours"], 2)


@row("1.5 subscribe")
def test_the_limit_is_of_one_message(api, ws, topic):
    api.write(topic, *range(5))
    ws.send("subscribe", topic=topic, limit=2)
    ws.next("subscribed")
    assert [seqs(ws.next("record")) for _ in range(3)] == [[1, 2], [3, 4], [5]]
    ws.next("caught_up")


@row("1.5 subscribe", "1.5 error")
def test_an_unknown_topic_is_an_error_unless_lenient(api, ws, topic, name):
    api.make(topic)
    missing = name()
    ws.send("subscribe", request_id=1, topics={topic: {}, missing: {}})
    error = ws.next("error")
    expect.keys(error, {"op", "request_id", "code", "message"}, {"detail"})
    assert (error["request_id"], error["code"]) == (1, "topic_not_found")
    ws.send("subscribe", request_id=2, topics={topic: {}, missing: {}}, lenient=True)
    assert list(ws.next("subscribed")["topics"]) == [topic]


@row("1.5 unsubscribe")
def test_after_unsubscribing_nothing_more_is_pushed(api, ws, topic, name):
    other = name()
    for each in (topic, other):
        api.make(each)
        ws.send("subscribe", topic=each)
        ws.until("caught_up")
    ws.send("unsubscribe", request_id="u", topic=topic)
    assert ws.next() == {"op": "unsubscribed", "request_id": "u", "topics": [topic]}
    api.write(topic, "unseen")
    api.write(other, "seen")
    assert payloads(ws.next("record")) == ["seen"]
    ws.next("caught_up")
    ws.send("unsubscribe", topic=other, topics=[other, "unknown", other])
    assert ws.next("unsubscribed")["topics"] == [other], "each is left once"
    api.write(other, "unseen")
    ws.send("ping")
    assert ws.next()["op"] == "pong"


@row("1.5 publish")
def test_a_publication_is_acknowledged(api, ws, topic):
    ws.send("publish", request_id="p", topic=topic, records=[{"data": 1}, {"data": 2}], node="n")
    ack = ws.next("ack")
    expect.keys(ack, ACK)
    expect.performance(ack)
    del ack["performance"]
    assert ack == {
        "op": "ack",
        "request_id": "p",
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }
    assert [record["$node"] for record in api.diff(topic)["records"]] == ["n", "n"]


@row("1.5 publish")
def test_without_return_seqs_they_are_null(ws, topic):
    ws.send("publish", topic=topic, records=[{"data": 1}], return_seqs=False)
    ack = ws.next("ack")
    assert ack["seqs"] is None
    assert ack["first_seq"] == 1


@row("1.5 publish", "2 idempotency")
def test_a_publication_may_have_an_idempotency_key(ws, topic):
    body = {"topic": topic, "records": [{"data": 1}], "idempotency_key": "k"}
    ws.send("publish", **body)
    assert ws.next("ack")["deduped"] is False
    ws.send("publish", **body)
    again = ws.next("ack")
    assert (again["deduped"], again["seqs"]) == (True, [1])


@row("1.5 publish")
def test_a_publication_may_create_with_a_config_or_insist_on_a_topic(api, ws, topic, name):
    ws.send("publish", topic=topic, records=[{"data": 1}], config={"type": "queue"})
    assert ws.next("ack")["created"] is True
    assert api.state(topic)["type"] == "queue"
    ws.send("publish", request_id=5, topic=name(), records=[{"data": 1}], create=False)
    error = ws.next("error")
    assert (error["code"], error["request_id"]) == ("topic_not_found", 5)


@row("1.5 publish", "1.5 error")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"records": []}, "invalid_request"),
        ({}, "invalid_request"),
        ({"records": [{"tag": "t"}]}, "invalid_request"),
        ({"records": [{"data": "x" * 1_048_577}]}, "record_too_large"),
        ({"topic": "_bad", "records": [{"data": 1}]}, "invalid_request"),
    ],
)
def test_a_bad_publication_is_an_error_and_the_socket_stays_open(ws, topic, fields, code):
    ws.send("publish", **{"request_id": "r", "topic": topic, **fields})
    error = ws.next("error")
    expect.keys(error, {"op", "request_id", "code", "message"}, {"detail"})
    assert (error["code"], error["request_id"]) == (code, "r")
    ws.send("ping")
    ws.next("pong")


@row("1.5 publish", "1.2 write limits")
def test_a_publication_may_be_larger_than_its_largest_record(api, ws, topic):
    data = ["x" * 900_000, "y" * 900_000]
    ws.send("publish", topic=topic, records=[{"data": datum} for datum in data])
    assert ws.next("ack")["count"] == 2
    assert api.state(topic)["bytes"] == 1_800_004


@row("1.5 publish", "1.5 record")
def test_what_a_socket_publishes_it_can_see_itself(ws, topic):
    ws.send("publish", topic=topic, records=[{"data": 0}])
    ws.next("ack")
    ws.send("subscribe", topic=topic, tail=True)
    ws.next("subscribed")
    ws.next("caught_up")
    for number in range(1, 4):
        ws.send("publish", topic=topic, records=[{"data": number}])
    found = {"ack": 0, "record": []}
    while found["ack"] < 3 or len(found["record"]) < 3:
        message = ws.next()
        if message["op"] == "ack":
            found["ack"] += 1
        elif message["op"] == "record":
            found["record"] += payloads(message)
    assert found["record"] == [1, 2, 3]


@row("1.5 publish")
def test_publications_are_answered_in_order(ws, topic):
    for number in range(50):
        ws.send("publish", request_id=number, topic=topic, records=[{"data": number}])
    acks = [ws.next("ack") for _ in range(50)]
    assert [ack["request_id"] for ack in acks] == list(range(50))
    assert [ack["first_seq"] for ack in acks] == list(range(1, 51))


@row("1.5 tombstone")
def test_a_tombstone_has_the_reason_of_the_engine(api, ws, topic):
    api.make(topic, cap_records=2)
    api.write(topic, *range(5))
    ws.send("subscribe", topic=topic)
    ws.next("subscribed")
    assert expect.told(ws.next()) == {
        "op": "tombstone",
        "topic": topic,
        "reason": "cap",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert seqs(ws.next("record")) == [4, 5]


@row("1.5 topic_deleted")
def test_a_deleted_topic_is_told(api, ws, topic):
    api.make(topic)
    ws.send("subscribe", topic=topic)
    ws.until("caught_up")
    api.delete(at(topic))
    assert ws.next() == {"op": "topic_deleted", "topic": topic, "head_seq": 0, "reason": "deleted"}
    ws.send("ping")
    ws.next("pong")


@row("1.5 invalid_json")
@pytest.mark.parametrize("text", ["{", "nonsense", ""])
def test_text_that_is_no_json_is_an_error(ws, text):
    ws.raw.send(text)
    error = ws.next("error")
    expect.keys(error, {"op", "request_id", "code", "message"}, {"detail"})
    assert (error["code"], error["request_id"]) == ("invalid_json", None)
    ws.send("ping")
    ws.next("pong")


@row("1.5 error")
@pytest.mark.parametrize("text", ["[]", "7", '{"request_id":1}', '{"op":"dance","request_id":1}'])
def test_json_that_is_no_command_is_an_error(ws, text):
    ws.raw.send(text)
    error = ws.next("error")
    assert error["request_id"] in (None, 1)
    ws.send("ping")
    ws.next("pong")


@row("1.5 error")
def test_a_number_that_is_too_large_is_an_error_where_it_is_read(ws, api, topic):
    api.make(topic)
    ws.raw.send(f'{{"op":"subscribe","topic":"{topic}","limit":1e400,"request_id":1}}')
    error = ws.next("error")
    assert (error["code"], error["request_id"]) == ("invalid_request", 1)
    ws.raw.send(f'{{"op":"subscribe","topic":"{topic}","colour":1e400,"request_id":2}}')
    assert ws.next("subscribed")["request_id"] == 2


@row("1.5 unsupported_message")
def test_a_binary_frame_is_an_error(ws):
    ws.raw.send(b'{"op":"ping"}')
    error = ws.next("error")
    assert (error["code"], error["request_id"]) == ("unsupported_message", None)
    ws.send("ping")
    ws.next("pong")


@row("1.0 compact", "1.0 fidelity")
def test_messages_are_compact_and_keep_payloads(api, ws, topic):
    done(api.post(at(topic), b'{"records":[{"data":{"z" : 1.50}}]}'))
    ws.send("subscribe", topic=topic)
    assert not blanks_outside_strings(ws.text().encode())
    assert '"data":{"z" : 1.50}' in ws.text()
    assert not blanks_outside_strings(ws.text().encode())


@row("1.5 subscribe")
def test_a_request_without_an_upgrade_is_refused(api):
    answer = api.get("/v0/ws")
    assert 400 <= answer.status < 500
    expect.envelope(answer.json)


@row("1.5 record")
def test_a_fragmented_message_and_a_ping_frame_are_understood(ws):
    ws.raw.send(iter(['{"op":', '"ping",', '"request_id":9}']))
    assert ws.next() == {"op": "pong", "request_id": 9}
    assert ws.raw.ping().wait(10), "a ping frame is answered with a pong frame"


@row("1.5 record")
def test_a_socket_that_is_not_read_harms_nobody_and_misses_nothing(api, server, topic):
    api.make(topic)
    with (
        Socket(server, max_queue=1, compression=None) as slow,
        Socket(server, compression=None) as quick,
    ):
        for each in (slow, quick):
            each.send("subscribe", topic=topic)
        for number in range(60):
            api.write(topic, [number, "x" * 200_000])
        for each in (quick, slow):
            assert [record["data"][0] for record in each.records(60)] == list(range(60))


@row("1.5 error", "1.5 subscribe")
@pytest.mark.parametrize(
    "fields", [{}, {"topics": {}}, {"topic": 5}, {"topics": ["a"]}, {"topic": "a", "from_seq": -1}]
)
def test_a_bad_subscription_is_an_error(ws, fields):
    ws.send("subscribe", request_id=3, **fields)
    error = ws.next("error")
    assert error["request_id"] == 3
    assert error["code"] in ("invalid_request", "topic_not_found")
