from __future__ import annotations

import pytest

from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.store import DiskFull
from penstock.server.api.errors import Hiding
from penstock.server.push.ws import failed

HIDE = Hiding(
    {"the data directory": ["/srv/data", "data"], "the cold directory": ["/srv/data/cold"]}
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/data", "the data directory"),
        ("'/srv/data/log/0001.seg'", "'the data directory'"),
        ("/srv/data/cold/a.seg: gone", "the cold directory: gone"),
        ("in data/log.", "in the data directory"),
        ("the data is gone", "the data is gone"),
        ("/srv/database/x and metadata/x", "/srv/database/x and metadata/x"),
    ],
)
def test_paths_of_the_server_are_words(text, shown):
    assert HIDE(text, 400) == shown


def test_a_failure_of_the_server_shows_no_path_at_all():
    error = DiskFull("no space left for /mnt/disk/log: [Errno 28] No space left: '/mnt/disk/log/1'")
    answer = HIDE.answer(error)
    assert answer.status == 429
    assert b"/mnt" not in answer.body
    assert b"/mnt" not in failed(b"1", error, HIDE)
    assert b"no space left" in answer.body
    assert "/x/y" not in HIDE.text(Corrupt("damage in /x/y at 7"))


def test_what_the_client_said_itself_stays():
    assert b"/v0/topics/x" in HIDE.answer(Rejected("found /v0/topics/x")).body
