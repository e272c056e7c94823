"""Why a follower does not have what its leader has, in words."""

from __future__ import annotations

import pytest

from penstock.cluster.node import waits
from penstock.raft.group import FollowerStatus


@pytest.mark.parametrize(
    ("stage", "heard", "paused", "words"),
    [
        ("replicate", True, False, "on their way"),
        ("replicate", False, False, "not heard from"),
        ("snapshot", True, False, "snapshot"),
        ("probe", True, True, "full disk"),
        ("probe", True, False, "looked for"),
    ],
)
def test_a_follower_that_is_behind_waits_for_something(
    stage: str, heard: bool, paused: bool, words: str
) -> None:
    follower = FollowerStatus(7, stage, 10, 1, 100, heard, paused)
    assert words in waits(follower, 11)
    assert waits(follower, 10) == ""
