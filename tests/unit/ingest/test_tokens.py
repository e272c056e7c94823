"""Device tokens: who may send."""

from __future__ import annotations

from hashlib import sha256

import pytest

from penstock.ingest.tokens import parse_tokens
from penstock.kernel.errors import Rejected


def test_a_device_has_its_own_token():
    tokens = parse_tokens("a one\nb two\n")
    assert tokens.allows("a", b"one")
    assert not tokens.allows("a", b"two")
    assert not tokens.allows("b", b"one")
    assert not tokens.allows("c", b"one")
    assert not tokens.allows("c", b"")


def test_a_digest_stands_for_its_token():
    tokens = parse_tokens(f"a sha256:{sha256(b'one').hexdigest()}")
    assert tokens.allows("a", b"one")


def test_a_star_is_any_device():
    tokens = parse_tokens("# all\n* fleet\n\na own\n")
    assert tokens.allows("anything", b"fleet")
    assert tokens.allows("a", b"own")
    assert len(tokens) == 2


@pytest.mark.parametrize(
    "text", ["", "# nothing", "a", "a b c", "a b\na c", "a sha256:12", "a sha256:zz", "ü b"]
)
def test_a_file_that_says_nothing_clear_is_refused(text):
    with pytest.raises(Rejected):
        parse_tokens(text)


def test_an_error_does_not_tell_the_token():
    with pytest.raises(Rejected) as caught:
        parse_tokens("a secret more")
    assert "secret" not in str(caught.value)
