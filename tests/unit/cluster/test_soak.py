"""The soak of a cluster says when it did less than was asked for."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from bench.trial import Trial
from tests.soak.cluster import VERBS, count_faults, count_outages
from tests.soak.overload import bound_of


def asked(**facts: float) -> argparse.Namespace:
    nothing = dict.fromkeys(VERBS, 0)
    limits = {"outage_p50_s": None, "outage_worst_s": None}
    return argparse.Namespace(**{**nothing, **limits, **facts})


@pytest.mark.parametrize(
    ("wanted", "short"),
    [
        (asked(kill=3, member=1, outage_p50_s=2, outage_worst_s=4), ()),
        (asked(), ()),
        (asked(kill=4), ("faults: kill: 3, asked for at least 4",)),
        (asked(cut=1), ("faults: cut: 0, asked for at least 1",)),
        (asked(member=2), ("faults: member: 2, asked for at least 4",)),
        (asked(outage_p50_s=0.9), ("first write acknowledged after a kill: median of 3: 1 s",)),
        (asked(outage_worst_s=3), ("first write acknowledged after a kill: worst of 3: 3.5 s",)),
    ],
)
def test_what_is_less_or_slower_than_asked_is_said(
    wanted: argparse.Namespace, short: tuple[str, ...]
) -> None:
    trial = Trial("faults")
    count_faults(trial, wanted, {"kill": 3, "member": 2})
    count_outages(trial, wanted, {"kill": [3.5, 0.5, 1.0], "freeze": []})
    found = trial.shortfalls()
    assert len(found) == len(short)
    assert all(said.startswith(words) for said, words in zip(found, short, strict=True))


def test_the_bound_of_a_share_is_that_of_the_bucket_where_it_ends() -> None:
    late = Counter({10.0: 98, 500.0: 1, 2_000.0: 1})
    assert bound_of(late, 0.98) == 10
    assert bound_of(late, 0.99) == 500
    assert bound_of(late, 1.0) == 2_000
    assert bound_of(Counter(), 0.99) == 0
