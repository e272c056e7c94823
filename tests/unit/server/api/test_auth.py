from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import Forbidden, Unauthorized
from penstock.protocol.routes import ADMIN, DELETE, EVERYTHING, READ, WRITE
from penstock.server.api.auth import (
    bearer,
    offered_protocols,
    parse_keys,
    protocol_token,
    query_token,
)


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("k", EVERYTHING),
        ("k:", EVERYTHING),
        ("k::a", EVERYTHING),
        ("k:read", READ),
        ("k:R+w", READ | WRITE),
        ("k:rw+DEL", READ | WRITE | DELETE),
        ("k:d+a", DELETE | ADMIN),
    ],
)
def test_scopes_are_joined_words_and_none_means_all(text, scopes):
    assert parse_keys(text).find("k").scopes == scopes


def test_a_bad_scope_word_is_refused():
    with pytest.raises(Rejected, match="'wirte'"):
        parse_keys("k:read+wirte")


def test_a_key_without_a_secret_or_twice_is_refused():
    with pytest.raises(Rejected, match="before its scopes"):
        parse_keys(":read")
    with pytest.raises(Rejected, match="twice"):
        parse_keys("k:read,k:write")


def test_no_key_at_all_means_no_ring():
    assert parse_keys("") is None
    assert parse_keys(" , ") is None


def test_prefixes_say_which_names_a_key_reaches():
    grant = parse_keys("k:r:a.|b:").find("k")
    assert [grant.reaches(name) for name in ("a.x", "b:x", "c", "a")] == [True, True, False, False]
    assert parse_keys("k:r:").find("k").reaches("anything")


def test_every_key_is_found_wherever_it_stands():
    ring = parse_keys("a:r,b:w,c:d")
    assert [ring.find(key).scopes for key in "abc"] == [READ, WRITE, DELETE]
    assert ring.find("d") is None


def test_a_missing_or_unknown_key_is_unauthorized():
    ring = parse_keys("a")
    for key in (None, "b", ""):
        with pytest.raises(Unauthorized):
            ring.identify(key)


def test_a_key_without_the_scope_or_the_name_is_forbidden():
    grant = parse_keys("k:read:a.").find("k")
    with pytest.raises(Forbidden, match=r"scope read\+write"):
        grant.check(READ | WRITE)
    with pytest.raises(Forbidden) as caught:
        grant.check_name("b", topic="b")
    assert caught.value.detail == {"topic": "b"}


@pytest.mark.parametrize(
    ("value", "key"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None)],
)
def test_the_bearer_is_read_from_the_header(value, key):
    assert bearer({"authorization": value}) == key


def test_the_first_token_of_a_query_counts_and_is_form_decoded():
    assert query_token("x=1&token=a%2Bb+c&token=z") == "a+b c"
    assert query_token("x=1") is None


def test_a_browser_may_offer_its_key_as_a_subprotocol():
    coded = urlsafe_b64encode(b"s3cret?").decode().rstrip("=")
    offered = offered_protocols({"sec-websocket-protocol": f"penstock.v0, bearer.{coded}"})
    assert offered[0] == "penstock.v0"
    assert protocol_token(offered) == "s3cret?"
    assert protocol_token(["bearer.A"]) is None
    assert protocol_token(["penstock.v0"]) is None
