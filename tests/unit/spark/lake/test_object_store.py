from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.spark.lake.object_store import check_store
from penstock.spark.options import SparkOptions


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "hadoop-client-api-3.5.0.jar").touch()
    return tmp_path


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")


def test_a_lake_on_s3_without_the_jars_says_which_version_to_install(jars: Path) -> None:
    with pytest.raises(Rejected, match=r"org\.apache\.hadoop:hadoop-aws:3\.5\.0"):
        check_store(SparkOptions(), "s3://bucket/lake", jars)


def test_everything_that_is_missing_is_said_at_once(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", str(jars))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Rejected, match=r"hadoop-aws.*AWS_SECRET_ACCESS_KEY"):
        check_store(SparkOptions(), "s3://bucket/lake", jars)


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"},
        {"spark.jars": "/opt/hadoop-aws-3.5.0.jar,/opt/bundle.jar"},
    ],
)
def test_jars_that_settings_name_will_do(jars: Path, conf: dict[str, str]) -> None:
    check_store(SparkOptions(conf=conf), "s3://bucket/lake", jars)


def test_jars_in_sparks_directory_will_do(jars: Path) -> None:
    (jars / "hadoop-aws-3.5.0.jar").touch()
    check_store(SparkOptions(), "s3://bucket/lake", jars)


def test_a_directory_needs_nothing(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    check_store(SparkOptions(), str(jars), jars)
    check_store(SparkOptions(), None, jars)
