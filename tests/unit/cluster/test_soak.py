"""The soak of a cluster says when it did less than was asked for."""

from __future__ import annotations

import argparse

import pytest

from tests.soak.cluster import VERBS, shortfalls


def asked(**facts: float) -> argparse.Namespace:
    nothing = dict.fromkeys(VERBS, 0)
    limits = {"require_records": 0, "outage_p50_s": None, "outage_worst_s": None}
    return argparse.Namespace(**{**nothing, **limits, **facts})


@pytest.mark.parametrize(
    ("wanted", "short"),
    [
        (asked(kill=3, member=1, require_records=100, outage_p50_s=2, outage_worst_s=4), ()),
        (asked(), ()),
        (asked(kill=4), ("3 of 4 faults of the kind 'kill'",)),
        (asked(cut=1), ("0 of 1 faults of the kind 'cut'",)),
        (asked(member=2), ("2 of 4 faults of the kind 'member'",)),
        (asked(require_records=101), ("100 of 101 records",)),
        (asked(outage_p50_s=0.9), ("the median outage after a kill was 1.00 s",)),
        (asked(outage_worst_s=3), ("the worst outage after a kill was 3.50 s",)),
    ],
)
def test_what_is_less_or_slower_than_asked_is_said(
    wanted: argparse.Namespace, short: tuple[str, ...]
) -> None:
    counts = {"kill": 3, "member": 2}
    found = list(shortfalls(wanted, counts, {"kill": [3.5, 0.5, 1.0], "freeze": []}, 100))
    assert len(found) == len(short)
    assert all(said.startswith(words) for said, words in zip(found, short, strict=True))
