"""`penstock entity` as a real command against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.conformance.servers import ServerProcess

NUMBERS = count(1)
LIMIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def environ(server: ServerProcess) -> dict[str, str]:
    return os.environ | {"PENSTOCK_URL": server.address.url}


@pytest.fixture
def space() -> str:
    return f"space{next(NUMBERS)}"


def run(environ: dict[str, str], *words: str, stdin: str = "") -> list[Any]:
    done = called(environ, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(environ: dict[str, str], *words: str, stdin: str = "") -> str:
    done = called(environ, *words, stdin=stdin)
    assert done.returncode in (1, 2), done.stdout
    assert done.stdout == ""
    return done.stderr


def called(
    environ: dict[str, str], *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "entity", *words],
        env=environ, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_an_entity_is_set_patched_shown_and_deleted(environ: dict[str, str], space: str) -> None:
    assert run(environ, "set", space, "tariff", '{"price": 30, "band": "day"}')[0]["seq"] == 1
    assert run(environ, "patch", space, "tariff", stdin='{"price": 31, "band": null}')
    (found,) = run(environ, "get", space, "tariff")
    assert found == {"entity": "tariff", "seq": 2, "doc": {"price": 31}, "head": 2}
    (before,) = run(environ, "get", space, "tariff", "--at", "1")
    assert before["doc"] == {"price": 30, "band": "day"}
    run(environ, "set", space, "other", "-", stdin="[1]")
    assert [row["entity"] for row in run(environ, "list", space)] == ["other", "tariff"]
    assert [row["entity"] for row in run(environ, "list", space, "--at", "2")] == ["tariff"]
    assert [row["doc"] for row in run(environ, "list", space, "--prefix", "o")] == [[1]]
    run(environ, "delete", space, "tariff")
    assert "no entity 'tariff'" in refused(environ, "get", space, "tariff")
    history = run(environ, "history", space, "tariff")
    assert [row["seq"] for row in history] == [1, 2, 4]
    assert history[2]["writes"] == [{"entity": "tariff", "delete": True}]
    assert [row["seq"] for row in run(environ, "history", space, "tariff", "--limit", "1")] == [1]
    after = run(environ, "history", space, "tariff", "--after", "1", "--limit", "1")
    assert [row["seq"] for row in after] == [2]


def test_a_change_on_an_old_basis_or_of_an_old_event_is_refused(
    environ: dict[str, str], space: str
) -> None:
    run(environ, "set", space, "e", "1", "--event-id", "first")
    run(environ, "set", space, "e", "2", "--if-seq", "1")
    conflict = refused(environ, "set", space, "e", "3", "--if-seq", "1")
    assert "entity 'e' was read at seq 1 and written at 2" in conflict
    assert "and written at" in refused(environ, "delete", space, "e", "--if-seq", "1")
    assert "and written at" in refused(environ, "patch", space, "e", "{}", "--if-seq", "0")
    again = refused(environ, "set", space, "e", "3", "--event-id", "first")
    assert "receipt 'first' exists already" in again
    assert run(environ, "get", space, "e")[0]["doc"] == 2


def test_what_cannot_be_is_told_in_one_line(environ: dict[str, str], space: str) -> None:
    assert "'nonsense' is not JSON" in refused(environ, "set", space, "e", "nonsense")
    assert "entity id" in refused(environ, "set", space, "a b", "1")
    assert "there is no topic" in refused(environ, "get", space, "e")
    assert "there is no topic" in refused(environ, "watch", space)
    run(environ, "set", space, "e", "1")
    assert "at=9 is after the space's last commit, 1" in refused(
        environ, "get", space, "e", "--at", "9"
    )
    assert "no entity 'x'" in refused(environ, "delete", space, "x")
    assert "no entity 'x'" in refused(environ, "history", space, "x")
    error = refused(environ | {"PENSTOCK_URL": "http://127.0.0.1:1"}, "--timeout-s", "1", "get",
                    space, "e")  # fmt: skip
    trying, told = error.splitlines()
    assert trying.endswith("trying again")
    assert told.startswith("Error: cannot connect to http://127.0.0.1:1")


def test_changes_are_shown_as_they_come(environ: dict[str, str], space: str) -> None:
    run(environ, "set", space, "e", "1")
    run(environ, "set", space, "f", "1")
    watching = subprocess.Popen(
        [sys.executable, "-m", "penstock", "entity", "watch", space, "e", "--from-seq", "0"],
        env=environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert (first["seq"], first["entity"], first["set"]) == (1, "e", 1)
        run(environ, "patch", space, "f", "{}")
        run(environ, "delete", space, "e")
        second = json.loads(watching.stdout.readline())
        assert (second["seq"], second["entity"], second["delete"]) == (4, "e", True)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 0
    finally:
        watching.kill()
        watching.communicate()
