"""Small parts of the shell: names of processes, messages, settings, kinds of failure."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from penstock.kernel.errors import Busy, Rejected
from penstock.tables.errors import InvalidQuery
from penstock.tables.events import Refreshed
from penstock.tables.failures import FailureKind
from penstock.tables.frontier import Frontier, LakePosition, TopicPosition
from penstock.tables.retry import RetryPolicy
from penstock.tables.shell import Factory, WarehouseSettings, alive
from penstock.tables.shell.claim import LockHeld
from penstock.tables.shell.outcomes import Cancelled, Failed, Succeeded, detail_of, kind_of
from penstock.tables.shell.wire import Line, outcome_message, read_outcome
from penstock.tables.slots import ParallelMode


def test_a_process_is_alive_until_it_ends_and_nobody_else_is_taken_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = alive.process_name(process.pid)
        assert alive.is_here(name)
        assert alive.is_alive(name)
        assert alive.is_alive(f"{name}#3@somewhere")
        assert alive.pid_of(name) == process.pid
        earlier = f"{alive.host()}/{process.pid}-1"
        assert not alive.is_alive(earlier), "the same id at another time is another process"
        process.kill()
        process.wait()
        assert not alive.is_alive(name)


def test_a_process_of_another_machine_is_not_judged_here() -> None:
    assert not alive.is_here("elsewhere/1-1")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(Rejected, match="found 'nobody'"):
        alive.is_alive("nobody")


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
    one, other = (Line(end) for end in socket.socketpair())
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
    one, other = (Line(end) for end in socket.socketpair())
    one.connection.sendall(b'{"run": 1}\n{"ru')
    assert other.receive() == [{"run": 1}]
    one.connection.sendall(b'n": 2}\n')
    assert other.receive() == [{"run": 2}]
    one.close()
    other.close()


def test_settings_reach_a_worker_as_they_are() -> None:
    settings = WarehouseSettings(
        "sqlite:x",
        runner=Factory("a.b:c", {"master": "local"}),
        topics=Factory("d:e"),
        parallel_refresh_mode=ParallelMode.DRY_RUN,
        retry=RetryPolicy(base_ms=5),
        tick_ms=20,
    )
    assert WarehouseSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("options", "text"),
    [({"max_workers": 0}, "max_workers"), ({"tick_ms": 100, "lease_ms": 200}, "four ticks")],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(Rejected, match=text):
        WarehouseSettings("sqlite:x", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nothing", "no.such.module:make", "json:no_such_thing", ":x"])
def test_an_engine_that_cannot_be_loaded_is_refused_by_name(name: str) -> None:
    with pytest.raises(Rejected, match="expected"):
        Factory(name).topics()


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
