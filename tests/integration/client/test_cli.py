"""`penstock topic` as a real command against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

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
    address = server.address
    return os.environ | {"PENSTOCK_URL": f"http://{address.host}:{address.port}"}


@pytest.fixture
def name() -> str:
    return f"cli{next(NUMBERS)}"


def run(environ, *words, stdin="", code=0):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "topic", *words],
        env=environ, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else done.stderr


def test_what_is_written_can_be_read_listed_shown_and_deleted(environ, name):
    (written,) = run(environ, "write", name, '{"kwh": 1.5}', "2", "--tag", "t", "--node", "me")
    assert (written["first_seq"], written["last_seq"]) == (1, 2)
    records = run(environ, "read", name)
    assert [(r["$seq"], r["data"], r["$tag"], r["$node"]) for r in records] == [
        (1, {"kwh": 1.5}, "t", "me"), (2, 2, "t", "me"),
    ]  # fmt: skip
    assert [row["topic"] for row in run(environ, "list", "--prefix", name)] == [name]
    (state,) = run(environ, "show", name)
    assert (state["count"], state["config"]["type"]) == (2, "log")
    assert run(environ, "delete", name, "--before-seq", "2")[0]["deleted"] == 1
    assert run(environ, "delete", name, "--match", "t*")[0]["deleted"] == 1
    assert run(environ, "delete", name, "--if-empty")[0]["deleted"]


def test_lines_of_standard_input_are_records(environ, name):
    lines = "".join(f'{{"n": {n}}}\n' for n in range(2_500)) + "\n"
    run(environ, "write", name, "-", stdin=lines)
    assert [record["data"]["n"] for record in run(environ, "read", name)] == list(range(2_500))
    some = run(environ, "read", name, "--from-seq", "10", "--limit", "3")
    assert [record["$seq"] for record in some] == [11, 12, 13]
    last_ts = run(environ, "read", name, "--from-seq", "2499")[0]["$ts"]
    assert run(environ, "read", name, "--from-ts", str(last_ts + 60_000)) == []
    rest = run(environ, "read", name, "--from-ts", "0", "--from-seq", "2498")
    assert [record["$seq"] for record in rest] == [2499, 2500]


def test_all_lines_are_written_though_nobody_reads_what_is_said_of_them(environ, name):
    lines = "".join(f"{number}\n" for number in range(20_000))
    command = f"{sys.executable} -m penstock topic write {name} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=environ, input=lines, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert run(environ, "show", name)[0]["count"] == 20_000


def test_a_key_makes_the_same_command_land_once(environ, name):
    run(environ, "write", name, "1", "--key", "k")
    assert run(environ, "write", name, "1", "--key", "k")[0]["deduped"]
    assert len(run(environ, "read", name)) == 1


def test_following_shows_what_comes_and_ends_cleanly(environ, name):
    run(environ, "write", name, "1")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "topic", "follow", name, "--from-seq", "0"],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert json.loads(process.stdout.readline())["data"] == 1
        run(environ, "write", name, "2")
        record = json.loads(process.stdout.readline())
        assert (record["topic"], record["data"]) == (name, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("read", "none"), 1, "none"),
        (("write", "a", "{bad"), 2, "bytes must be JSON text"),
        (("write", "a b", "1"), 1, "a b"),
        (("delete", "a", "--if-empty", "--match", "x"), 2, "--if-empty"),
        (("read",), 2, "Missing argument"),
        (("--url", "nonsense", "list"), 2, "is not the URL of a server"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(environ, words, code, text):
    error = run(environ, *words, code=code)
    assert text in error
    if code == 1:
        assert len(error.splitlines()) == 1


def test_nobody_at_the_address_is_said_at_once_and_in_the_end(environ):
    error = run(environ, "--url", "http://127.0.0.1:9", "--timeout-s", "0.2", "list", code=1)
    reason = "cannot connect to http://127.0.0.1:9: connection refused"
    assert error.splitlines() == [f"{reason}; trying again", f"Error: {reason}"]
