from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import ForeignHost, ForeignOrigin
from penstock.server.http.message import USUAL
from penstock.server.http.origins import Origins, authority, parse_host, parse_origin, preflight

LOCAL = Origins(allowed_hosts=())


def sent(**headers: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"host": "localhost:4000", **named}


@pytest.mark.parametrize(
    "text",
    ["", "app.example", "https://", "https://a/path", "https://a b", "ws://a", "https://u@a"],
)
def test_what_is_no_origin_is_refused_when_the_server_is_made(text):
    with pytest.raises(Rejected, match="allowed_origins like"):
        Origins(allowed_origins=[text])


@pytest.mark.parametrize("text", ["", "http://a", "a/b", "a:b", "[::1", "a b"])
def test_what_is_no_host_is_refused_when_the_server_is_made(text):
    with pytest.raises(Rejected, match="allowed_hosts like"):
        Origins(allowed_hosts=[text])


def test_origins_are_compared_as_browsers_write_them():
    policy = Origins(allowed_origins=["HTTPS://App.example:443", "http://b.example:8080"])
    for origin in ("https://app.example", "http://b.example:8080"):
        sender = policy.sender(sent(origin=origin))
        sender.check(changes=True)
        assert dict(sender.cors)[b"Access-Control-Allow-Origin"] == origin.encode()
    for origin in ("http://app.example", "https://app.example:8443", "https://x.app.example"):
        with pytest.raises(ForeignOrigin):
            policy.sender(sent(origin=origin)).check(changes=True)


def test_a_host_may_be_let_in_on_one_port_alone():
    policy = Origins(allowed_hosts=["t.example:4000", "2001:db8::1"])
    for host in ("T.example:4000", "[2001:db8::1]", "[2001:db8::1]:9"):
        assert policy.sender({"host": host}) is USUAL
    with pytest.raises(ForeignHost, match="allowed_hosts"):
        policy.sender({"host": "t.example:4001"}).check(changes=False)


def test_where_the_server_ends_tls_itself_a_page_of_http_is_foreign():
    headers = {"host": "t.example", "origin": "http://t.example"}
    assert Origins().sender(headers) is USUAL
    with pytest.raises(ForeignOrigin):
        Origins(is_tls=True).sender(headers).check(changes=True)


def test_the_null_origin_can_be_let_in_by_name():
    sender = Origins(allowed_origins=["null"]).sender(sent(origin="null"))
    sender.check(changes=True)
    assert dict(sender.cors)[b"Access-Control-Allow-Origin"] == b"null"


def test_a_long_header_is_not_repeated_in_full():
    sender = LOCAL.sender({"host": "h" * 9_000, "origin": "o" * 9_000})
    with pytest.raises(ForeignHost) as refused:
        sender.check(changes=True)
    assert len(refused.value.message) < 500


def test_a_preflight_takes_no_header_that_is_not_one():
    policy = Origins(allowed_origins=["https://app.example"])
    headers = sent(
        origin="https://app.example",
        access_control_request_method="PUT",
        access_control_request_headers="x-good, x bad, x\x7fbad, " + "y" * 100,
    )
    answer = preflight("OPTIONS", headers, policy.sender(headers))
    assert answer is not None
    allowed = dict(answer.headers)[b"Access-Control-Allow-Headers"].split(b", ")
    assert b"x-good" in allowed
    assert not any(b" " in name or b"\x7f" in name or len(name) > 64 for name in allowed)


HOSTS = st.lists(st.sampled_from(["a", "b1", "x-y", "0"]), min_size=1, max_size=3).map(".".join)
PORTS = st.none() | st.integers(1, 65_535)


@given(HOSTS, PORTS, st.sampled_from(["http", "https"]), HOSTS, PORTS)
def test_a_page_is_the_servers_own_only_if_host_and_port_are_the_same(
    host, port, scheme, page, page_port
):
    def joined(name, number):
        return name if number is None else f"{name}:{number}"

    default = {"http": 80, "https": 443}[scheme]
    headers = {"host": joined(host, port), "origin": f"{scheme}://{joined(page, page_port)}"}
    is_own = (host, port or default) == (page, page_port or default)
    assert (Origins().sender(headers) is USUAL) == is_own


@given(HOSTS, PORTS)
def test_a_host_that_is_let_in_is_answered_in_any_spelling(host, port):
    written = host if port is None else f"{host}:{port}"
    policy = Origins(allowed_hosts=[written.upper()])
    assert policy.sender({"host": written}) is USUAL
    assert parse_host(parse_host(written)) == parse_host(written)
    assert authority(written) is not None
    assert parse_origin(f"HTTP://{written}") == parse_origin(f"http://{written}")


@pytest.mark.parametrize(
    ("headers", "is_same"),
    [
        ({}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"origin": "http://localhost:4000"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "https://app.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://localhost:4000", "sec_fetch_site": "cross-site"}, False),
        ({"host": "evil.example", "origin": "http://evil.example"}, False),
    ],
)
@pytest.mark.parametrize("allowed", [(), ("*",), ("https://app.example",)])
def test_a_page_of_another_origin_is_not_the_same_even_if_it_is_let_in(headers, is_same, allowed):
    policy = Origins(allowed_hosts=(), allowed_origins=allowed)
    assert policy.sender(sent(**headers)).is_same_origin is is_same
