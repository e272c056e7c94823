from __future__ import annotations

import socket

import pytest

from penstock.tables.core.events import Refreshed
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition, TopicPosition
from penstock.tables.worker.messages import MessageLine, outcome_message, read_outcome
from penstock.tables.worker.outcomes import Cancelled, Failed, Succeeded

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
