from __future__ import annotations

import pytest

from penstock.kernel.errors import Busy, Rejected
from penstock.protocol.errors import InvalidQuery
from penstock.tables.core.failures import FailureKind
from penstock.tables.worker.claim import LockHeld
from penstock.tables.worker.outcomes import detail_of, kind_of


class SparkLike(Exception):
    def getCondition(self) -> str:
        return "UNRESOLVED_COLUMN.WITH_SUGGESTION"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidQuery("x"), FailureKind.PERMANENT),
        (Rejected("x"), FailureKind.PERMANENT),
        (SparkLike(), FailureKind.PERMANENT),
        (LockHeld("x"), FailureKind.COLLISION),
        (Busy("x"), FailureKind.RETRYABLE),
        (OSError("disk"), FailureKind.RETRYABLE),
    ],
)
def test_an_error_is_classified_by_its_class_and_those_above_it(
    error: Exception, kind: FailureKind
) -> None:
    assert kind_of(error) is kind


def test_what_is_kept_of_an_error_is_one_line() -> None:
    assert detail_of(OSError("no\n  room")) == "OSError: no room"
    assert len(detail_of(OSError("x" * 5_000))) < 1_100
