from __future__ import annotations

import pytest

from penstock.kernel.errors import Rejected
from penstock.spark.options import SparkOptions


def test_a_local_master_has_as_many_cores_as_asked_for_or_as_there_are() -> None:
    assert SparkOptions().master_url(8) == "local[8]"
    assert SparkOptions(cores=3).master_url(8) == "local[3]"
    assert SparkOptions(master="local[5]").master_url(8) == "local[5]"
    assert SparkOptions(master="spark://host:7077").master_url(8) == "spark://host:7077"


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"remote": "http://x"}, "http://x"),
        ({"master": "mesos://x"}, "mesos://x"),
        ({"master": "spark://host"}, "spark://host"),
        ({"cores": 0}, "not 0"),
        ({"memory_mb": 100}, "not 100"),
    ],
)
def test_what_cannot_work_is_refused_at_once(wrong: dict[str, object], found: str) -> None:
    with pytest.raises(Rejected, match=found):
        SparkOptions(**wrong)  # type: ignore[arg-type]
