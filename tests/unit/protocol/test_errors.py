"""One table of errors: what the server raises, the client raises again."""

from __future__ import annotations

import json
import pickle

import pytest

from penstock.client.errors import answer_error
from penstock.kernel.errors import Corrupt, PenstockError
from penstock.protocol.errors import (
    ERRORS,
    CallError,
    EntityNotFound,
    Internal,
    InvalidRequest,
    NotFound,
    ServerUnavailable,
    TopicNotEmpty,
    TopicsApart,
    error_of,
)
from penstock.server.api.errors import error_answer

GROUPS = {"Rejected", "Conflict", "Busy", "Gone", "Unavailable", "Corrupt"}


@pytest.mark.parametrize("code", ERRORS)
def test_the_client_raises_the_class_that_the_servers_code_names(code: str) -> None:
    raised = ERRORS[code].told("it went wrong", {"fact": 1})
    answer = error_answer(raised)
    told = answer_error(answer.status, answer.body)
    assert type(told) is type(raised)
    assert (told.code, told.status, told.message) == (code, raised.status, "it went wrong")
    assert told.detail["fact"] == 1


@pytest.mark.parametrize("kind", ERRORS.values())
def test_every_error_of_the_protocol_says_what_to_do_next(kind: type[CallError]) -> None:
    groups = {base.__name__ for base in kind.__mro__ if PenstockError in base.__bases__}
    assert len(groups & GROUPS) == 1
    assert kind.__doc__


def test_a_subclass_without_a_code_is_told_as_its_parent() -> None:
    answer = error_answer(TopicsApart("a", "b"))
    assert json.loads(answer.body)["error"]["code"] == "topic_exists_incompatible"
    assert type(answer_error(answer.status, answer.body)) is ERRORS["topic_exists_incompatible"]


def test_a_code_of_a_newer_server_is_known_by_its_status() -> None:
    assert type(error_of(404, "planet_not_found", "no such planet")) is NotFound
    assert type(error_of(503, "eclipse")) is ServerUnavailable
    assert type(error_of(418, "teapot")) is InvalidRequest
    assert type(error_of(507)) is Internal


def test_an_error_survives_pickling_whatever_it_was_made_from() -> None:
    for error in (TopicNotEmpty("t", 3), EntityNotFound("s", "e", 7), error_of(410, "gone", "x")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.detail, again.status) == (str(error), error.detail, error.status)


def test_what_is_damaged_is_not_tried_again() -> None:
    assert issubclass(ERRORS["records_unreadable"], Corrupt)
    assert not issubclass(ERRORS["records_unreadable"], ServerUnavailable)
