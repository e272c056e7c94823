"""Signing in at a real server: a browser's cookie in place of an API key."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.conformance.servers import ServerProcess
from tests.conformance.streams import EventStream
from tests.conformance.wire import JSON, Address, Answer, Api, at, done, payloads

KEYS = "root-secret,read-secret:read:team-"
FRIEND = "https://app.example"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    process = ServerProcess(directory, API_KEYS=KEYS, ALLOWED_ORIGINS=FRIEND)
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(scope="module")
def root(server: ServerProcess) -> Api:
    api = Api(server.address, "root-secret")
    api.write("team-t", "of the team")
    api.write("other-t", "of others")
    return api


def cookie_of(answer: Answer) -> dict[str, str]:
    """The cookie that an answer sets, as a browser sends it back."""
    assert answer.status == 200, str(answer)
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


@pytest.fixture
def cookie(root: Api) -> dict[str, str]:
    return cookie_of(root.post("/v0/session"))


def twin_in(page: Answer) -> dict:
    _, _, rest = page.body.decode().partition('id="twin">')
    return json.loads(rest.partition("</script>")[0])


def test_a_page_has_its_data_with_a_cookie_and_asks_to_sign_in_without(root, cookie):
    browser = root.with_key(None)
    page = browser.get("/topics/team-t", {**HTML, **cookie})
    twin = browser.get("/topics/team-t", {"Accept": "application/json", **cookie})
    assert twin_in(page)["sections"]["topic"]["topic"] == "team-t"
    assert twin.json["session"]["signed_in"] is True
    assert twin.headers["Cache-Control"] == "no-store"
    before = browser.get("/topics/team-t", HTML)
    assert twin_in(before)["sign_in"] is True
    assert b"of the team" not in before.body
    with EventStream(root.address, "/v0/live?on=/topics/team-t", cookie) as stream:
        assert stream.status == 200


def test_deeds_of_a_page_need_no_key_whenever_their_body_comes(root, cookie):
    browser = root.with_key(None)
    done(browser.post(at("team-deeds"), {"records": [{"data": 1}]}, cookie))
    large = {"records": [{"data": "x" * 500_000}]}
    done(browser.post(at("team-deeds"), large, cookie))
    assert sent_late(root.address, at("team-deeds"), b'{"records":[{"data":3}]}', cookie) == 200
    found = [data for data in payloads(root.diff("team-deeds")) if isinstance(data, int)]
    assert found == [1, 3]
    assert sent_late(root.address, at("team-deeds"), b"{}", {"Cookie": "penstock=guess"}) == 401


def sent_late(address: Address, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of a POST whose body is sent once the server asks for it, or at its refusal."""
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **headers, **JSON}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(address, timeout=10) as plain:
        head = f"POST {path} HTTP/1.1\r\n{lines}Expect: 100-continue\r\n\r\n"
        plain.sendall(head.encode())
        answer = plain.makefile("rb")
        status = int(answer.readline().split()[1])
        if status != 100:
            return status
        answer.readline()
        plain.sendall(body)
        return int(answer.readline().split()[1])


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "https://evil.example"},
        {"Origin": FRIEND},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_cookie_from_a_page_of_another_origin_counts_for_nothing(root, cookie, page):
    browser = root.with_key(None)
    head = root.diff("team-t")["head_seq"]
    sent = {**cookie, **page}
    assert browser.get("/v0/topics/team-t", sent).status == 401
    assert browser.get("/topics/team-t", {"Accept": "application/json", **sent}).status == 401
    assert twin_in(browser.get("/topics/team-t", {**HTML, **sent}))["sign_in"] is True
    assert browser.get("/v0/live?on=/", sent).status in (401, 403)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert browser.get("/v0/ws", {**upgrade, **sent}).status in (401, 403)
    body = {"records": [{"data": "evil"}]}
    assert browser.post(at("team-t"), body, sent).status in (401, 403)
    assert browser.request("DELETE", "/v0/session", None, sent).status in (401, 403)
    assert root.diff("team-t")["head_seq"] == head
    own = {"Origin": root.address.url.replace("0.0.0.0", "127.0.0.1"), **cookie}
    done(browser.post(at("team-own"), body, own))
    assert browser.get("/v0/session", cookie).json["signed_in"] is True


def test_a_cookie_is_held_to_the_scopes_and_prefixes_of_its_key(root):
    browser, cookie = (
        root.with_key(None),
        cookie_of(root.with_key("read-secret").post("/v0/session")),
    )
    told = browser.get("/v0/session", cookie).json
    assert (told["scopes"], told["prefixes"]) == (["read"], ["team-"])
    assert browser.get("/v0/topics/team-t", cookie).status == 200
    assert browser.get("/v0/topics/other-t", cookie).status == 403
    assert browser.post(at("team-t"), {"records": [{"data": 1}]}, cookie).status == 403
    page = browser.get("/topics", {**HTML, **cookie})
    assert b"team-t" in page.body
    assert b"other-t" not in page.body


def test_signing_out_and_a_restart_end_a_session(tmp_path):
    process = ServerProcess(tmp_path, API_KEYS=KEYS)
    try:
        api = Api(process.start().address, "root-secret")
        first, second = (cookie_of(api.post("/v0/session")) for _ in range(2))
        browser = api.with_key(None)
        assert done(browser.request("DELETE", "/v0/session", None, first))["ended"] is True
        assert browser.get("/v0/topics", first).status == 401
        assert browser.get("/v0/topics", second).status == 200
        process.kill()
        browser = Api(process.start().address)
        assert browser.get("/v0/topics", second).status == 401
    finally:
        process.close()


def test_ten_wrong_keys_and_the_peer_waits_a_minute(tmp_path):
    process = ServerProcess(tmp_path, API_KEYS=KEYS)
    try:
        api = Api(process.start().address, "root-secret")
        cookie = cookie_of(api.post("/v0/session"))
        for n in range(10):
            assert api.with_key(f"guess-{n}").post("/v0/session").status == 401
        refused = api.post("/v0/session")
        assert refused.status == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert api.get("/v0/topics").status == 200  # keys and sessions go on
        assert api.with_key(None).get("/v0/topics", cookie).status == 200
    finally:
        process.close()


def test_neither_token_nor_key_is_in_the_log_or_in_an_answer(server, root, cookie):
    token = cookie["Cookie"].partition("=")[2]
    told = root.with_key(None).get("/v0/session", cookie)
    page = root.with_key(None).get("/", {**HTML, **cookie})
    seen = told.body + page.body + (server.directory / "server.log").read_bytes()
    for secret in (token, "root-secret", "read-secret"):
        assert secret.encode() not in seen
