"""A lake on S3: what Spark and we need for it, looked for before any work is begun.

pyarrow has S3 built in. Spark, as pip installs it, has not: Hadoop's file system for it and
Amazon's library are jars of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel.errors import Rejected
from penstock.lake.storage import ADVICE, HADOOP_CLASSES, has_credentials, is_s3
from penstock.spark.jvm.embedded import pyspark_home
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_CLASS: Final = HADOOP_CLASSES["s3"]
_JARS: Final = (
    "spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.jars.ivySettings",
)  # fmt: skip
_LOADABLE: Final = (
    f"SELECT java_method('org.apache.spark.util.Utils', 'classIsLoadable', '{_CLASS}') AS loadable"
)


def check_store(options: SparkOptions, data_path: str | None, jars_dir: Path | None = None) -> None:
    """Refuse a data path on S3 for which a Spark of ours lacks jars, or we credentials."""
    if data_path is None or not is_s3(data_path):
        return
    wrong = []
    jars_dir = jars_dir or pyspark_home() / "jars"
    if options.remote is None and not _has_jars(options.conf, jars_dir):
        wrong.append(f"Hadoop's S3 file system is not among Spark's jars: {_install(jars_dir)}")
    if not has_credentials(data_path):
        wrong.append(f"there are no credentials: {ADVICE}")
    if wrong:
        raise Rejected(f"a lake on s3:// cannot be used here: {'; '.join(wrong)}")


def check_session(spark: SparkSession, data_path: str) -> None:
    """Refuse a data path on S3 where the Spark of a session has no file system for it."""
    if not is_s3(data_path):
        return
    row: Any = spark.sql(_LOADABLE).first()
    if row is not None and row.loadable == "false":
        raise Rejected(
            "a lake on s3:// cannot be used here: Hadoop's S3 file system is not among the jars of "
            f"this Spark: {_install()}"
        )
    spark.conf.set("fs.s3.impl", _CLASS)


def _has_jars(conf: Mapping[str, str], jars_dir: Path) -> bool:
    if any(jars_dir.glob("hadoop-aws-*.jar")):
        return True
    return any("hadoop-aws" in conf.get(key, "") for key in _JARS)


def _install(jars_dir: Path | None = None) -> str:
    version = _hadoop_version(jars_dir) if jars_dir is not None else None
    where = f"into {jars_dir}" if jars_dir is not None else "into its directory jars"
    return (
        f'set spark.jars.packages = "org.apache.hadoop:hadoop-aws:{version or "VERSION"}" in '
        f"[spark.conf], or put hadoop-aws and the AWS SDK bundle it needs {where}"
    )


def _hadoop_version(jars_dir: Path) -> str | None:
    """The version of Hadoop that Spark comes with, which that of hadoop-aws must be."""
    for path in jars_dir.glob("hadoop-client-api-*.jar"):
        found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", path.name)
        if found:
            return found[1]
    return None
