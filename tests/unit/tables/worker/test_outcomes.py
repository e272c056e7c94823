from __future__ import annotations

import socket

import pytest

from penstock.kernel.errors import Busy, Rejected
from penstock.protocol.errors import InvalidQuery
from penstock.tables.core.events import Refreshed
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition, TopicPosition
from penstock.tables.worker.claim import LockHeld
from penstock.tables.worker.outcomes import (
    Cancelled,
    Failed,
    MessageLine,
    Succeeded,
    detail_of,
    kind_of,
    outcome_message,
    read_outcome,
)


class SparkLike(Exception):
    def getCondition(self) -> str:
        return "UNRESOLVED_COLUMN.WITH_SUGGESTION"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidQuery("x"), FailureKind.PERMANENT),
        (Rejected("x"), FailureKind.PERMANENT),
        (SparkLike(), FailureKind.PERMANENT),
        (LockHeld("x"), FailureKind.COLLISION),
        (Busy("x"), FailureKind.RETRYABLE),
        (OSError("disk"), FailureKind.RETRYABLE),
    ],
)
def test_an_error_is_classified_by_its_class_and_those_above_it(
    error: Exception, kind: FailureKind
) -> None:
    assert kind_of(error) is kind


def test_what_is_kept_of_an_error_is_one_line() -> None:
    assert detail_of(OSError("no\n  room")) == "OSError: no room"
    assert len(detail_of(OSError("x" * 5_000))) < 1_100


OUTCOMES = [
    Succeeded(
        {
            "a": Refreshed(Frontier({"raw": LakePosition(3)}), LakePosition(7)),
            "b": Refreshed(Frontier({"topics.T": TopicPosition(1, 2)}), None),
        }
    ),
    Failed(FailureKind.RETRYABLE, "no more room", "a"),
    Failed(FailureKind.COLLISION, "held", None),
    Cancelled("the graph changed"),
]


@pytest.mark.parametrize("ended", OUTCOMES)
def test_an_outcome_arrives_as_it_was_sent(ended: Succeeded | Failed | Cancelled) -> None:
    one, other = (MessageLine(end) for end in socket.socketpair())
    one.send(outcome_message(5, ended))
    (message,) = other.receive()
    assert message["job"] == 5
    assert read_outcome(message) == ended
    one.close()
    assert other.receive() == []
    assert not other.is_open
    other.send({"to": "nobody"})
    other.close()


def test_a_message_in_pieces_is_one_message() -> None:
    one, other = (MessageLine(end) for end in socket.socketpair())
    one.connection.sendall(b'{"run": 1}\n{"ru')
    assert other.receive() == [{"run": 1}]
    one.connection.sendall(b'n": 2}\n')
    assert other.receive() == [{"run": 2}]
    one.close()
    other.close()
