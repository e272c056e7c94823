"""Writes that fail at a real server: each says whether it surely did not happen, or may have."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.client import Client, ClientSettings, RetryPolicy
from penstock.client.errors import Disconnected, TimedOut, Unreachable
from penstock.kernel.errors import Unknown
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import (
    CallError,
    NotReady,
    Outcome,
    OutcomeUnknown,
    Throttled,
    TopicFull,
)
from tests.conformance import expect
from tests.conformance.servers import ServerProcess
from tests.conformance.sockets import Socket
from tests.conformance.wire import Api, at
from tests.waiting import wait_until

LIMIT_S = 60.0
ONCE = RetryPolicy(tries_max=1)
FAULTY = Path(__file__).parents[1] / "server" / "faulty_disk.py"


class FaultyServer(ServerProcess):
    """A server whose log fails or waits when it is told to."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, **settings)
        self._fault = directory / "fault"
        self._held = directory / "fault.held"
        self.command = (str(FAULTY), str(self._fault), "serve")

    def fault(self, word: str) -> None:
        new = self._fault.with_suffix(".new")
        new.write_text(word)
        new.replace(self._fault)

    def heal(self) -> None:
        self._fault.unlink(missing_ok=True)
        self._held.unlink(missing_ok=True)

    @property
    def holds(self) -> bool:
        """Whether something is synced, and its answer kept back."""
        return self._held.exists()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    process = FaultyServer(tmp_path)
    process.start().stay()
    try:
        yield process
    finally:
        process.discard()


def settings_of(server: ServerProcess, **options: Any) -> ClientSettings:
    address = server.address
    url = f"http://{address.host}:{address.port}"
    return replace(ClientSettings(url, timeout_s=LIMIT_S), **options)


@pytest.fixture
def client(server: FaultyServer) -> Iterator[Client]:
    with Client(settings_of(server)) as client:
        client.put_topic("t", durability="fsync")
        yield client


@pytest.fixture
def once(server: FaultyServer) -> Iterator[Client]:
    """A client that tries everything once."""
    with Client(settings_of(server, retry=ONCE)) as client:
        yield client


class Begun:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: CallError | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except CallError as error:
            self.error = error

    def end(self) -> Begun:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self


def values(client: Client, topic: str = "t") -> list[Any]:
    return [record.data for page in client.read(topic) for record in page.records]


# Killed between the receipt and the answer


def test_a_write_whose_server_dies_before_its_answer_is_unknown(server, client, once):
    server.fault("hold")
    begun = Begun(lambda: once.write("t", [1], idempotency_key=None))
    wait_until(lambda: server.holds)
    server.kill()
    error = begun.end().error
    assert isinstance(error, OutcomeUnknown)
    assert isinstance(error.__cause__, Disconnected)
    assert (error.idempotency_key, error.status) == (None, 0)
    server.heal()
    server.start()
    assert values(client) == [1], "it was done although there was no answer"


def test_the_same_key_again_gives_the_first_answer(server, client, once):
    server.fault("hold")
    begun = Begun(lambda: once.write("t", ["x", "y"], idempotency_key="k"))
    wait_until(lambda: server.holds)
    server.kill()
    error = begun.end().error
    assert isinstance(error, OutcomeUnknown)
    assert error.idempotency_key == "k"
    server.heal()
    server.start()
    again = once.write("t", ["x", "y"], idempotency_key=error.idempotency_key)
    assert (again.first_seq, again.last_seq, again.deduped) == (1, 2, True)
    assert values(client) == ["x", "y"]


def test_a_client_with_a_key_finds_out_by_itself(server, client):
    server.fault("hold")
    begun = Begun(lambda: client.write("t", [1]))
    wait_until(lambda: server.holds)
    server.kill()
    server.heal()
    server.start()
    answer = begun.end().answer
    assert (answer.first_seq, answer.deduped) == (1, True)
    assert values(client) == [1]


def test_a_commit_whose_server_dies_before_its_answer_is_unknown_and_found_out(server, once):
    commit = Commit(session="s", local_seq=1, writes=(CommitWrite("e", set=1),))
    once.put_topic("other")
    server.fault("hold")
    begun = Begun(lambda: once.commit("space", commit))
    wait_until(lambda: server.holds)
    server.kill()
    assert isinstance(begun.end().error, OutcomeUnknown)
    server.heal()
    server.start()
    assert once.commit("space", commit).replayed


def test_jobs_whose_ack_got_no_answer_may_be_done(server, client, once):
    client.put_topic("q", type="queue", durability="fsync")
    client.write("q", [1])
    jobs = client.claim("q", "me").claimed
    server.fault("hold")
    begun = Begun(lambda: once.ack("q", "me", jobs))
    wait_until(lambda: server.holds)
    server.kill()
    assert isinstance(begun.end().error, OutcomeUnknown)
    server.heal()
    server.start()
    assert client.get_topic("q").count == 0, "here it was"


def test_an_answer_that_does_not_come_in_time_is_unknown(server, client, once):
    server.fault("hold")
    with pytest.raises(OutcomeUnknown) as caught:
        once.within(2.0).write("t", [1], idempotency_key="k")
    assert isinstance(caught.value.__cause__, TimedOut)
    server.heal()
    again = client.write("t", [1], idempotency_key="k")
    assert (again.first_seq, again.deduped) == (1, True)


def test_a_server_that_is_asked_to_end_answers_what_it_has_begun(server, client, once):
    server.fault("hold")
    begun = Begun(lambda: once.write("t", [1], idempotency_key=None))
    wait_until(lambda: server.holds)
    server.terminate()
    wait_until(lambda: not _listens(server))
    server.heal()
    assert begun.end().answer.first_seq == 1
    assert server.wait() == 0
    with pytest.raises(Unreachable) as caught:
        once.write("t", [2], idempotency_key=None)
    assert caught.value.outcome is Outcome.DEFINITE
    server.start()
    assert values(client) == [1]


def _listens(server: ServerProcess) -> bool:
    with suppress(OSError), socket.create_connection(tuple(server.address), 1):
        return True
    return False


# The log fails


def test_a_sync_that_fails_leaves_a_write_unknown_and_refuses_the_next(server, client, once):
    client.write("t", ["before"])
    server.fault("fail")
    with pytest.raises(OutcomeUnknown) as caught:
        once.write("t", ["x"], idempotency_key="k")
    assert (caught.value.status, caught.value.idempotency_key) == (504, "k")
    server.heal()
    # The log takes nothing more, though the disk is well again. Nobody has seen the write.
    with pytest.raises(NotReady) as refused:
        once.write("t", ["y"], idempotency_key="l")
    assert refused.value.outcome is Outcome.DEFINITE
    assert values(client) == ["before"]
    server.kill()
    server.start()
    again = client.write("t", ["x"], idempotency_key="k")
    assert (again.first_seq, again.deduped) == (2, True), "its bytes were on the disk"
    assert not client.write("t", ["y"], idempotency_key="l").deduped
    assert values(client) == ["before", "x", "y"]


def test_a_full_disk_is_a_limit_that_refuses_for_certain(server, client, once):
    client.write("t", ["before"])
    server.fault("full")
    with pytest.raises(Throttled) as refused:
        once.write("t", ["x"], idempotency_key="k")
    assert refused.value.outcome is Outcome.DEFINITE
    assert refused.value.detail["limit"] == "disk"
    api = Api(server.address)
    answer = api.post(at("t"), {"records": [{"data": 1}]})
    expect.refusal(answer, 429, "throttled", {"limit": "disk", "retry_after_ms": 1_000})
    with Socket(server.address) as peer:
        failed = peer.ask("publish", "error", topic="t", records=[{"data": 1}])
        assert failed["code"] == "throttled"
        assert "outcome" not in failed
    assert values(client) == ["before"]
    server.heal()
    assert client.write("t", ["x"], idempotency_key="k").first_seq == 2  # it is tried again
    assert values(client) == ["before", "x"]


def test_the_answer_to_a_failed_sync_names_the_key_and_no_path(server, client):
    server.fault("fail")
    api = Api(server.address)
    answer = api.post(at("t"), {"records": [{"data": 1}]}, headers={"Idempotency-Key": "k"})
    assert expect.refusal(answer, 504, "outcome_unknown") == {"idempotency_key": "k"}
    assert answer.json["error"]["outcome"] == "unknown"
    assert str(server.directory) not in str(answer)
    answer = api.post(at("t"), {"records": [{"data": 1}]})
    expect.refusal(answer, 503, "not_ready")
    assert "outcome" not in answer.json["error"]


def test_a_publication_over_a_websocket_says_so_too(server, client):
    server.fault("fail")
    with Socket(server.address) as peer:
        failed = peer.ask("publish", "error", topic="t", records=[{"data": 1}])
        assert (failed["code"], failed["outcome"]) == ("outcome_unknown", "unknown")
        failed = peer.ask("publish", "error", topic="t", records=[{"data": 1}])
        assert failed["code"] == "not_ready"
        assert "outcome" not in failed


def test_what_the_log_had_not_begun_when_it_failed_surely_was_not_written(server, client, once):
    server.fault("hold")
    first = Begun(lambda: once.write("t", [1], idempotency_key=None))
    wait_until(lambda: server.holds)
    behind = [Begun(lambda: once.write("t", [2], idempotency_key=None)) for _ in range(3)]
    wait_until(lambda: _waiting(client) >= 3)
    server.fault("fail")
    errors = [begun.end().error for begun in (first, *behind)]
    assert isinstance(errors[0], OutcomeUnknown)
    assert all(isinstance(error, NotReady) for error in errors[1:])
    server.kill()
    server.heal()
    server.start()
    assert values(client) == [1]


def _waiting(client: Client) -> int:
    return int(client.scheduler()["log"]["queue_depth"])


def test_the_shell_tells_the_three_apart(server, client):
    url = settings_of(server).url

    def run(*words: str) -> tuple[int, str]:
        place = ["--url", url, "--timeout-s", "0.5"]
        result = CliRunner().invoke(main, ["topic", "write", "t", "1", *words, *place])
        return result.exit_code, result.output.splitlines()[-1]

    assert run()[0] == 0
    server.fault("fail")
    code, text = run("--key", "k")
    assert code == 3
    assert "may or may not have been written" in text
    assert "--key k" in text
    code, text = run("--key", "l")
    assert code == 1
    assert "takes no more writes" in text
    server.kill()
    server.heal()
    assert run("--key", "l")[0] == 1
    server.start()
    assert (
        run("--key", "k") == (0, "wrote 1 record as seq 2 (deduped)") or run("--key", "k")[0] == 0
    )
    assert values(client) == [1, 1]


# Refused before anything is done


def test_what_a_limit_refuses_surely_did_not_happen(tmp_path):
    server = ServerProcess(tmp_path, MAX_TOPICS=1).start()
    try:
        with Client(settings_of(server, retry=RetryPolicy(tries_max=2))) as client:
            client.put_topic("t", cap_records=1, discard="reject")
            for refused in (
                lambda: client.put_topic("another"),
                lambda: client.write("another", [1], idempotency_key=None),
            ):
                with pytest.raises(Throttled) as caught:
                    refused()
                assert caught.value.outcome is Outcome.DEFINITE
            client.write("t", [1])
            with pytest.raises(TopicFull) as caught:
                client.write("t", [2], idempotency_key=None)
            assert caught.value.outcome is Outcome.DEFINITE
            assert values(client) == [1]
            assert [row.topic for row in client.list_topics()] == ["t"]
    finally:
        server.discard()


def test_what_nobody_was_there_to_take_surely_did_not_happen(server, client, once):
    server.kill()
    for change in (
        lambda: once.write("t", [1], idempotency_key=None),
        lambda: once.write("t", [1]),
        lambda: once.put_topic("u"),
        lambda: once.claim("q", "me"),
    ):
        with pytest.raises(Unreachable) as caught:
            change()
        assert caught.value.outcome is Outcome.DEFINITE
        assert not isinstance(caught.value, Unknown)


# Half an answer


@contextmanager
def cutting(server: ServerProcess, answer_bytes: int, answers: int) -> Iterator[str]:
    """A proxy that passes on so many bytes of each of the first answers, and all of the others."""
    left = answers

    def serve(near: socket.socket) -> None:
        nonlocal left
        with near, socket.create_connection(tuple(server.address)) as far:
            while request := near.recv(65_536):
                far.sendall(request)
                answer = far.recv(65_536)
                if left > 0:
                    left -= 1
                    near.sendall(answer[:answer_bytes])
                    return
                near.sendall(answer)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=serve, args=(near,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer_bytes", [0, 9, 60, 160])
def test_half_an_answer_is_none(server, client, answer_bytes):
    with cutting(server, answer_bytes, 1) as url, Client(ClientSettings(url)) as other:
        with pytest.raises(OutcomeUnknown) as caught:
            other.write("t", [1], idempotency_key=None)
        assert isinstance(caught.value.__cause__, Disconnected)
        assert other.write("t", [2]).first_seq == 2
    with cutting(server, answer_bytes, 2) as url, Client(ClientSettings(url)) as other:
        written = other.write("t", [3])
        assert (written.first_seq, written.deduped) == (3, True)
    assert values(client) == [1, 2, 3]
