from __future__ import annotations

import json

import pytest

from penstock.protocol.errors import TopicNotFound
from penstock.protocol.requests import WatchPlace
from penstock.server.api.answers import Flags, Numbers, Spent, written
from penstock.server.push.sse import caught_up_data
from penstock.server.push.ws import (
    BadMessage,
    PingMessage,
    PublishMessage,
    SubscribeMessage,
    UnsubscribeMessage,
    acked,
    failed,
    parse_message,
    pong,
    pushed,
    subscribed,
)
from penstock.topics.core.read import DiffPage
from penstock.topics.core.record import Found


def test_an_id_comes_back_as_it_was_sent():
    operation = parse_message(b'{"op":"ping","request_id":{"a" : 1}}')
    assert operation == PingMessage(b'{"a" : 1}')
    assert pong(operation.request_id) == b'{"op":"pong","request_id":{"a" : 1}}'
    assert pong(parse_message(b'{"op":"ping"}').request_id) == b'{"op":"pong","request_id":null}'


def test_one_topic_is_a_map_of_one():
    operation = parse_message(b'{"op":"subscribe","topic":"t","from_seq":3,"tail":false}')
    assert isinstance(operation, SubscribeMessage)
    assert operation.body.topics == {"t": WatchPlace(from_seq=3, tail=False)}


def test_an_end_of_all_names_nothing():
    assert parse_message(b'{"op":"unsubscribe"}') == UnsubscribeMessage(b"null", None)
    assert parse_message(b'{"op":"unsubscribe","topic":"a"}').topics == ["a"]
    assert parse_message(b'{"op":"unsubscribe","topics":["a","b"]}').topics == ["a", "b"]


def test_a_publication_is_handed_on_as_it_was_sent():
    text = b'{"op":"publish","topic":"t","records":[{"data": 1}],"return_seqs":false}'
    assert parse_message(text) == PublishMessage(b"null", "t", text, False)


@pytest.mark.parametrize(
    ("text", "code", "request_id"),
    [
        (b"{", "invalid_json", b"null"),
        (b"[]", "invalid_request", b"null"),
        (b'{"op":"shout","request_id":1}', "invalid_request", b"1"),
        (b'{"op":"publish","request_id":2}', "invalid_request", b"2"),
        (b'{"op":"subscribe","topic":1,"request_id":3}', "invalid_request", b"3"),
        (b'{"op":"unsubscribe","topics":[1],"request_id":4}', "invalid_request", b"4"),
        (b'{"op":"unsubscribe","topics":"ab","request_id":4}', "invalid_request", b"4"),
    ],
)
def test_a_message_that_is_no_operation_is_told_why(text, code, request_id):
    with pytest.raises(BadMessage) as caught:
        parse_message(text)
    assert caught.value.error.code == code
    assert caught.value.request_id == request_id


def test_an_ack_is_the_answer_of_a_write_with_an_id():
    body = written(b"t", Numbers(1, 2, 2, 2), Flags(), Spent(1.0, 1.0, 1.0))
    told = json.loads(acked(b'"x"', body, return_seqs=True))
    assert (told["op"], told["request_id"], told["seqs"]) == ("ack", "x", [1, 2])
    short = written(b"t", Numbers(1, 2, 2, 2), Flags(return_seqs=False), Spent(1.0, 1.0, 1.0))
    assert json.loads(acked(b"1", short, return_seqs=False))["seqs"] is None


def test_what_is_pushed_is_the_data_of_an_event_with_its_op():
    diff = DiffPage(Found((), (), ()), 4, 4, 1, None, 7, 0)
    message = pushed(b"caught_up", caught_up_data("t", diff))
    assert json.loads(message) == {"op": "caught_up", "topic": "t", "head_seq": 4, "epoch": 7}


def test_an_error_has_its_id_code_and_message():
    told = json.loads(failed(b"7", TopicNotFound("t")))
    assert (told["op"], told["request_id"], told["code"]) == ("error", 7, "topic_not_found")
    assert set(told) == {"op", "request_id", "code", "message"}


def test_a_subscription_is_answered_with_the_place_in_each_topic():
    told = json.loads(subscribed(b"1", {"t": {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}}))
    assert told["topics"]["t"]["head_seq"] == 2
