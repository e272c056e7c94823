"""1.0 Browsers: pages of other origins change nothing, rebound names read nothing, unless let in.

Browsers tell whose page a request is of; programs do not. A real browser does the same in
`tests/integration/server/test_browser.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance import expect
from tests.conformance.h2client import H2Client
from tests.conformance.rows import row
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import DEADLINE_S, Address, Answer, Api, at, payloads

EVIL = "http://evil.example"
APP = "https://app.example"
RECORD = {"records": [{"data": 1}]}


def foreign(origin: str = EVIL) -> dict[str, str]:
    return {"Origin": origin}


def raw(address: Address, *lines: str) -> Answer:
    """Send a head as it is and read the answer."""
    with socket.create_connection(address, timeout=DEADLINE_S) as link:
        link.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = http.client.HTTPResponse(link)
        answer.begin()
        return Answer(answer.status, answer.headers, answer.read())


@pytest.fixture(scope="module")
def open_api(launch) -> Api:
    """A server without keys whose operator let one origin and one name in."""
    started = launch(ALLOWED_ORIGINS=f"{APP}, http://localhost:3000", ALLOWED_HOSTS="t.example")
    return Api(started.address)


def changing(api: Api) -> list[tuple[str, str]]:
    """Every method and path of the server that may change something."""
    document = api.get("/v0/openapi.json").json
    found = [
        (method.upper(), re.sub(r"\{\w+\}", "x", path))
        for path, methods in document["paths"].items()
        for method in methods
        if method != "get" or path in ("/v0/ws", "/v0/watch/{name}", "/v0/topics/{name}/work")
    ]
    assert len(found) > 25, found
    return found


@row("1.0 foreign origin")
@pytest.mark.parametrize(
    "headers",
    [
        foreign(),
        foreign("null"),
        foreign(""),
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=["another origin", "no origin", "empty", "cross-site", "same-site"],
)
def test_a_page_of_another_origin_changes_nothing_on_any_route(api, headers):
    for method, path in changing(api):
        answer = api.request(method, path, None, headers)
        expect.refusal(answer, 403, "foreign_origin")
        assert "Access-Control-Allow-Origin" not in answer.headers


@row("1.0 foreign origin")
def test_nothing_of_a_foreign_write_lands(api, name):
    topic = name()
    api.make(topic)
    for _ in range(2):  # the second on the same connection has the head of the first
        expect.refusal(api.post(at(topic), RECORD, foreign()), 403, "foreign_origin")
    connection = api.connect()
    with contextlib.closing(connection):
        assert api.exchange(connection, "POST", at(topic), RECORD).status == 200
        refused = api.exchange(connection, "POST", at(topic), RECORD, foreign())
        expect.refusal(refused, 403, "foreign_origin")
        assert api.exchange(connection, "POST", at(topic), RECORD).status == 200
    assert payloads(api.diff(topic)) == [1, 1]


@row("1.0 foreign origin")
def test_the_error_names_the_origin_and_how_to_let_it_in(api, name):
    answer = api.post(at(name()), RECORD, foreign("https://tool.example:8443"))
    expect.refusal(answer, 403, "foreign_origin", {"origin": "https://tool.example:8443"})
    assert "allowed_origins" in answer.json["error"]["message"]


@row("1.0 foreign origin")
def test_a_foreign_body_is_not_even_read(api, name):
    head = [
        f"POST {at(name())} HTTP/1.1", f"Host: localhost:{api.address.port}", f"Origin: {EVIL}",
        "Content-Type: application/json", "Content-Length: 60000000",
    ]  # fmt: skip
    expect.refusal(raw(api.address, *head), 403, "foreign_origin")


@row("1.0 foreign origin")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_servers_own_pages_may_do_everything(api, name, scheme):
    """A proxy that ends TLS leaves the scheme of the page to be https."""
    own = f"{scheme}://{api.address.host}:{api.address.port}"
    headers = {"Origin": own, "Sec-Fetch-Site": "same-origin"}
    assert api.post(at(name()), RECORD, headers).status == 201
    with Socket(api.address, origin=own) as socket_:
        assert socket_.ask("ping", "pong")


@row("1.0 foreign origin")
def test_a_host_and_an_origin_without_ports_belong_together(api, name):
    topic = name()
    for origin, host, status in (
        ("http://localhost", "localhost", 201),
        ("https://localhost", "LocalHost", 200),
        ("https://localhost", "localhost.:443", 200),
        ("http://localhost", "localhost:443", 403),
        ("http://[::1]:4000", "[::1]:4000", 200),
        ("http://localhost:4001", "localhost:4000", 403),
        ("ftp://localhost:4000", "localhost:4000", 403),
        ("http://localhost:4000@evil.example", "localhost:4000", 403),
        ("http://localhost:4000, http://evil.example", "localhost:4000", 403),
    ):
        headers = {"Origin": origin, "Host": host}
        assert api.post(at(topic), RECORD, headers).status == status, (origin, host)


@row("1.0 foreign origin")
def test_requests_that_no_page_sent_are_as_ever(api, name):
    topic = name()
    assert api.post(at(topic), RECORD).status == 201
    for site in ("none", "same-origin"):
        assert api.post(at(topic), RECORD, {"Sec-Fetch-Site": site}).status == 200


@row("1.0 foreign origin")
def test_reading_is_as_ever_but_a_page_cannot_see_it(api, name):
    topic = name()
    api.write(topic, 1)
    answer = api.get(at(topic), foreign())
    assert answer.status == 200
    assert "Access-Control-Allow-Origin" not in answer.headers


@row("1.0 foreign origin")
def test_a_foreign_page_opens_no_socket(api):
    with pytest.raises(InvalidStatus) as refused, Socket(api.address, origin=EVIL):
        pass
    assert refused.value.response.status_code == 403
    assert b"foreign_origin" in refused.value.response.body


@row("1.0 foreign origin")
def test_keys_do_not_let_foreign_pages_in(launch):
    api = Api(launch(API_KEYS="k").address, "k")
    expect.refusal(api.put(at("t"), headers=foreign()), 403, "foreign_origin")
    with (
        pytest.raises(InvalidStatus) as refused,
        Socket(api.address, key="k", origin=EVIL),
    ):
        pass
    assert refused.value.response.status_code == 403


@row("1.0 foreign host")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4000", "localhost.evil.example", "127.0.0.1.evil.example",
     "10.1.2.3", "[2001:db8::1]:4000", "0.0.0.0:4000", "localhost:4000@evil.example",
     "evil.example#localhost", "localhost evil", "127.0.0.1, evil.example", "", ":4000"],
)  # fmt: skip
def test_without_keys_a_name_that_is_not_the_servers_gets_nothing(api, host):
    for method, path in (("GET", "/v0/topics"), ("GET", "/healthz"), ("POST", "/v0/watch"),
                         ("OPTIONS", "/v0/topics"), ("GET", "/v0/nothing")):  # fmt: skip
        answer = raw(api.address, f"{method} {path} HTTP/1.1", f"Host: {host}")
        expect.refusal(answer, 421, "foreign_host")
        assert "allowed_hosts" in answer.json["error"]["message"]


@row("1.0 foreign host")
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.3.2.1:80", "[::1]", "[::1]:4000",
     "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]:9"],
)  # fmt: skip
def test_loopback_and_localhost_are_the_servers_names(api, host):
    assert raw(api.address, "GET /v0/topics HTTP/1.1", f"Host: {host}").status == 200


@row("1.0 foreign host")
def test_a_target_that_names_a_host_counts_before_the_header(api):
    for target, status in (("evil.example", 421), ("localhost", 200)):
        line = f"GET http://{target}/v0/topics HTTP/1.1"
        for host in ("localhost", "evil.example"):
            assert raw(api.address, line, f"Host: {host}").status == status


@row("1.0 foreign host")
def test_a_request_without_a_host_or_with_two_is_as_ever(api):
    assert raw(api.address, "GET /v0/topics HTTP/1.0").status == 200
    assert raw(api.address, "GET /v0/topics HTTP/1.1").status == 400
    twice = ("Host: localhost", "Host: evil.example")
    assert raw(api.address, "GET /v0/topics HTTP/1.1", *twice).status == 400


@row("1.0 foreign host")
def test_hosts_can_be_let_in_by_name(open_api):
    for host, status in (("t.example", 200), ("T.example.:4000", 200), ("u.example", 421)):
        assert open_api.get("/v0/topics", {"Host": host}).status == status, host


@row("1.0 foreign host")
def test_with_keys_any_host_will_do(launch):
    api = Api(launch(API_KEYS="k").address, "k")
    assert api.get("/v0/topics", {"Host": "evil.example"}).status == 200
    anonymous = api.with_key(None).get("/v0/topics", {"Host": "evil.example"})
    expect.refusal(anonymous, 401, "unauthorized")


@row("1.0 foreign host", "1.0 foreign origin")
def test_http2_is_held_to_the_same(api):
    with H2Client(api.address) as client:
        client.authority = "evil.example:4000"
        assert client.request("GET", "/v0/topics").status == 421
        client.authority = f"localhost:{api.address.port}"
        assert client.request("GET", "/v0/topics").status == 200
        refused = client.request("PUT", "/v0/topics/x", headers={"origin": EVIL})
        assert refused.status == 403
        assert b"foreign_origin" in refused.body
        own = {"origin": f"http://{client.authority}"}
        assert client.request("PUT", "/v0/topics/own-page", headers=own).status == 201


@row("1.0 cors")
def test_a_page_that_was_let_in_may_do_and_read_everything(open_api, name):
    topic = name()
    headers = {**foreign(APP), "Sec-Fetch-Site": "cross-site"}
    for answer, status in (
        (open_api.post(at(topic), RECORD, headers), 201),
        (open_api.post(at(topic), RECORD, headers), 200),
        (open_api.get(at(topic), headers), 200),
        (open_api.get("/v0/nothing", headers), 404),
        (open_api.post(at(topic), {"records": 1}, headers), 400),
        (open_api.request("PATCH", at(topic), None, headers), 405),
        (open_api.post(at(topic), b"x" * 100, {**headers, "Content-Encoding": "br"}), 415),
    ):
        assert answer.status == status, answer
        assert answer.headers["Access-Control-Allow-Origin"] == APP, answer
        assert "retry-after" in answer.headers["Access-Control-Expose-Headers"].lower()
        assert "Origin" in answer.headers.get_all("Vary", [])
    assert "Access-Control-Allow-Credentials" not in answer.headers


@row("1.0 cors")
def test_every_header_that_tells_something_can_be_read(open_api, name):
    topic = name()
    open_api.write(topic, 1)
    headers = {**foreign(APP), "Accept": "application/vnd.apache.arrow.stream"}
    answer = open_api.post(at(topic, "diff"), {}, headers)
    told = {key.lower() for key in answer.headers if key.lower().startswith("x-penstock-")}
    exposed = answer.headers["Access-Control-Expose-Headers"].lower().split(", ")
    assert told
    assert told <= set(exposed)


@row("1.0 cors")
def test_streams_and_sockets_are_open_to_a_page_that_was_let_in(open_api, name):
    topic = name()
    open_api.make(topic, type="queue")
    path = at(topic, "work") + "?node=n"
    with EventStream(open_api.address, path, foreign(APP)) as stream:
        assert stream.status == 200
        assert stream.headers["Access-Control-Allow-Origin"] == APP
    with EventStream(open_api.address, path, foreign()) as stream:
        assert stream.status == 403
    with Socket(open_api.address, origin="http://localhost:3000") as socket_:
        assert socket_.ask("ping", "pong")
    with H2Client(open_api.address) as client:
        for extra, status in (({}, 200), ({"content-encoding": "br"}, 415)):
            reply = client.request("GET", at(topic), headers={"origin": APP, **extra})
            assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, APP)


@row("1.0 cors")
def test_answers_to_programs_tell_caches_that_pages_get_others(open_api):
    answer = open_api.get("/v0/topics")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "Origin" in answer.headers.get_all("Vary", [])


@row("1.0 cors")
@pytest.mark.parametrize("keys", ["", "k"], ids=["without keys", "with keys"])
def test_a_preflight_is_answered_for_an_origin_that_was_let_in(launch, keys):
    api = Api(launch(ALLOWED_ORIGINS=APP, API_KEYS=keys).address)
    asks = {
        **foreign(APP),
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "authorization,content-type,x-mine",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = api.request("OPTIONS", "/v0/topics/t", None, asks)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == APP
    assert "DELETE" in answer.headers["Access-Control-Allow-Methods"].split(", ")
    allowed = answer.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key", "x-mine"} <= set(allowed)
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
    refused = api.request("OPTIONS", "/v0/topics/t", None, {**asks, **foreign()})
    expect.refusal(refused, 403, "foreign_origin")
    plain = api.request("OPTIONS", "/v0/topics/t")
    assert plain.status == (401 if keys else 405)


@row("1.0 cors")
def test_every_origin_can_be_let_in(launch, name):
    api = Api(launch(ALLOWED_ORIGINS="*", ALLOWED_HOSTS="*").address)
    for origin in (EVIL, "null"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Host": "any.example"}
        answer = api.post(at(name()), RECORD, headers)
        assert answer.status == 201
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    site = {"Sec-Fetch-Site": "cross-site"}
    assert api.request("DELETE", at(name()), None, site).status == 200
