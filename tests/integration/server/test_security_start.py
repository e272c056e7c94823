"""What a server refuses to start with, and the same server behind TLS."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Address, Api, until


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Servers of a test, ended with it."""
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        server.discard()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"HOST": "0.0.0.0"}, "needs API keys"),
        ({"HOST": "::"}, "needs API keys"),
        ({"HOST": "0.0.0.0", "API_KEYS": " , "}, "needs API keys"),
        ({"API_KEYS": "s3cret:read+everything"}, "scope"),
        ({"API_KEYS": "s3cret:read+"}, "scope"),
        ({"API_KEYS": ":read"}, "key"),
        ({"API_KEYS": "s3cret:read,s3cret:write"}, "twice"),
        ({"TLS_CERT": "/nowhere/cert.pem"}, "tls_key"),
        ({"TLS_CERT": "/nowhere/cert.pem", "TLS_KEY": "/nowhere/key.pem"}, "certificate"),
    ],
)
def test_a_server_that_would_be_open_or_unclear_does_not_start(tmp_path, made, settings, told):
    server = ServerProcess(tmp_path, **settings)
    made.append(server)
    server.launch()
    assert server.wait() != 0
    assert told in server.log
    assert "Traceback" not in server.log
    assert "s3cret" not in server.log
    assert not (tmp_path / "port").exists(), "it listened before it refused"


def test_a_start_that_fails_does_not_say_before_that_it_listens(tmp_path, made):
    first = ServerProcess(tmp_path)
    made.append(first)
    first.start()
    until(lambda: "listens on http://127.0.0.1:" in first.log, "the line that says where it is")
    second = ServerProcess(tmp_path / "second", DATA_DIR=tmp_path / "data")
    (tmp_path / "second").mkdir()
    made.append(second)
    second.launch()
    assert second.wait() == 1
    assert "held by process" in second.log
    assert "listens on" not in second.log


@pytest.mark.parametrize("store", ["segment", "sqlite"])
def test_only_the_owner_and_their_group_may_look_into_the_log(tmp_path, made, store):
    (tmp_path / "data" / "log").mkdir(parents=True)
    (tmp_path / "data" / "log").chmod(0o755)  # as an earlier version left it
    server = ServerProcess(tmp_path, STORE=store)
    made.append(server)
    Api(server.start().address).write("t", 1)
    server.close()  # with a snapshot
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
        for path in (tmp_path / "data").rglob("*")
    }
    assert modes["data/log"] == 0o750
    for path, mode in modes.items():
        assert mode == (0o750 if (tmp_path / path).is_dir() else 0o640), path


@pytest.fixture(scope="module")
def behind_tls(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[Address]:
    """Where a server behind TLS listens; it has a key."""
    cert, key = certificate
    directory = tmp_path_factory.mktemp("server")
    server = ServerProcess(directory, TLS_CERT=cert, TLS_KEY=key, API_KEYS="s3cret")
    server.launch()
    try:
        yield server.listening()
    finally:
        server.discard()


def test_behind_tls_everything_is_as_before(behind_tls, certificate):
    cert, _ = certificate
    address = behind_tls
    context = ssl.create_default_context(cafile=str(cert))
    link = http.client.HTTPSConnection("localhost", address.port, context=context, timeout=30)
    headers = {"Authorization": "Bearer s3cret", "Content-Type": "application/json"}
    body = json.dumps({"records": [{"data": "over tls"}]})

    def ask(method: str, path: str, text: str | None = None) -> http.client.HTTPResponse:
        link.request(method, path, text, headers)
        return link.getresponse()

    while (ready := ask("GET", "/readyz")).status == 503:
        ready.read()
    ready.read()
    written = ask("POST", "/v0/topics/t", body)
    assert written.status == 201, written.read()
    written.read()
    page = json.loads(ask("POST", "/v0/topics/t/diff", "{}").read())
    assert [record["data"] for record in page["records"]] == ["over tls"]
    signed_in = ask("POST", "/v0/session")
    assert "Secure" in signed_in.headers["Set-Cookie"].split("; ")
    link.close()
    with pytest.raises(ssl.SSLError):  # a client that knows nobody who vouches for it
        http.client.HTTPSConnection(
            "localhost", address.port, context=ssl.create_default_context(), timeout=30
        ).request("GET", "/healthz")


def test_a_plain_client_gets_nothing_from_a_server_behind_tls(behind_tls):
    link = http.client.HTTPConnection(*behind_tls, timeout=30)
    link.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, OSError)):
        link.getresponse()
    link.close()


def test_old_versions_of_tls_are_refused(behind_tls, certificate):
    cert, _ = certificate
    context = ssl.create_default_context(cafile=str(cert))
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    openssl = shutil.which("openssl")
    assert openssl is not None
    found = subprocess.run(
        [openssl, "s_client", "-connect", f"127.0.0.1:{behind_tls.port}", "-tls1_1"],
        check=False,
        capture_output=True,
        input=b"",
        timeout=30,
    )
    assert b"Cipher is (NONE)" in found.stdout or found.returncode != 0
