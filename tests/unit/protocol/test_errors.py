"""One table of errors: what the server raises, the client raises again."""

from __future__ import annotations

import json
import pickle

import pytest

from penstock.client.errors import Disconnected, NotPenstock, TimedOut, answer_error
from penstock.kernel.errors import Corrupt, PenstockError, Unknown
from penstock.protocol.errors import (
    ERRORS,
    CallError,
    EntityNotFound,
    Internal,
    InvalidRequest,
    NotFound,
    Outcome,
    OutcomeUnknown,
    ServerUnavailable,
    TopicNotEmpty,
    TopicsApart,
    error_of,
)
from penstock.server.api.errors import error_answer

GROUPS = {"Rejected", "Conflict", "Busy", "Gone", "Unavailable", "Unknown", "Corrupt"}
UNKNOWN = {"internal", "outcome_unknown", "part_silent"}
"""The codes of failures in the middle. Everything else is refused before it changes anything."""


def every_subclass(kind: type[CallError]) -> list[type[CallError]]:
    return [each for below in kind.__subclasses__() for each in (below, *every_subclass(below))]


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


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_says_whether_the_request_surely_changed_nothing(code: str) -> None:
    kind = ERRORS[code]
    assert kind.outcome is (Outcome.UNKNOWN if code in UNKNOWN else Outcome.DEFINITE)
    answer = error_answer(kind.told("it went wrong"))
    assert json.loads(answer.body)["error"].get("outcome", "definite") == kind.outcome.value
    assert answer_error(answer.status, answer.body).outcome is kind.outcome


@pytest.mark.parametrize("kind", [*ERRORS.values(), *every_subclass(CallError)])
def test_an_error_of_the_group_unknown_has_an_unknown_outcome(kind: type[CallError]) -> None:
    if issubclass(kind, Unknown):
        assert kind.outcome is Outcome.UNKNOWN
    if kind.outcome is Outcome.UNKNOWN and not issubclass(kind, Unknown):
        # How reads end, which change nothing; the client raises none of these for a change.
        assert kind in (Internal, Disconnected, TimedOut, NotPenstock)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_of_a_proxy_tells_nothing_about_the_server_behind_it(status: int) -> None:
    assert answer_error(status, b"<html>").outcome is Outcome.UNKNOWN
    assert answer_error(429, b"<html>").outcome is Outcome.DEFINITE


def test_a_newer_server_may_say_of_any_code_that_its_outcome_is_unknown() -> None:
    body = b'{"error":{"code":"eclipse","message":"dark","outcome":"unknown"}}'
    assert answer_error(503, body).outcome is Outcome.UNKNOWN
    body = b'{"error":{"code":"eclipse","message":"dark"}}'
    assert answer_error(503, body).outcome is Outcome.DEFINITE
    assert answer_error(503, body).outcome is Outcome.DEFINITE, "the class is as it was"


def test_an_unknown_outcome_names_the_key_of_the_write() -> None:
    answer = error_answer(OutcomeUnknown("a sync failed", idempotency_key="k"))
    assert answer.status == 504
    assert json.loads(answer.body)["error"]["detail"] == {"idempotency_key": "k"}
    told = answer_error(answer.status, answer.body)
    assert isinstance(told, OutcomeUnknown)
    assert told.idempotency_key == "k"
    assert OutcomeUnknown("a sync failed").idempotency_key is None


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
