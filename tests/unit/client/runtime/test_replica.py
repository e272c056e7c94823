"""A replica: commits in their order, and none of them left out."""

from __future__ import annotations

import pytest

from penstock.client.runtime.replica import Change, EntityVersion, Replica


def commits(*seqs: int) -> list[Change]:
    return [Change(seq, "s", seq, ()) for seq in seqs]


@pytest.mark.parametrize(
    ("seqs", "follow"),
    [
        ((), True),
        ((5, 6, 7), True),
        ((3, 4, 5), True),  # some were seen before
        ((4, 4, 5), True),
        ((6,), False),
        ((5, 7), False),
        ((3, 4, 6), False),
    ],
)
def test_a_commit_that_was_left_out_is_noticed(seqs: tuple[int, ...], follow: bool) -> None:
    replica = Replica()
    replica.reset({"e": EntityVersion({}, 4)}, 4, 1)
    assert replica.continues(commits(*seqs)) is follow
    assert replica.seq == 4
