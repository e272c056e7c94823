"""What a Spark is asked before it gets any work, and when it is not asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.lake.storage import Storage
from penstock.spark.probes import check_shared, once_a_spark


class Asked(Exception):
    """The probe began to run a job."""


class SparkLike:
    """A Spark as far as the check looks before it runs a job."""

    def __init__(self, version: str, settings: dict[str, str]) -> None:
        self.version, self.conf, self.getAll = version, self, settings

    def get(self, key: str, default: str) -> str:
        return self.getAll.get(key, default)

    def range(self, *_: int) -> None:
        raise Asked


def test_a_spark_that_shares_the_files_is_not_asked_again_and_another_one_is(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    storage = Storage(f"{tmp_path}/files/")
    check = once_a_spark(lambda spark: check_shared(spark, storage))
    settings = spark.conf.getAll
    with pytest.raises(Asked):
        check(SparkLike(spark.version, settings))  # type: ignore[arg-type]
    check(spark)
    check(SparkLike(spark.version, settings))  # type: ignore[arg-type]
    for other in (
        SparkLike("3.5.0", settings),
        SparkLike(spark.version, settings | {"spark.driver.host": "elsewhere"}),
        SparkLike(spark.version, settings | {"spark.master": "spark://elsewhere:7077"}),
    ):
        with pytest.raises(Asked):
            check(other)  # type: ignore[arg-type]
    assert list((tmp_path / "files").iterdir()) == []
