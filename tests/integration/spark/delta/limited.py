"""An engine with limits of a test's own, so that a few rows are more than fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.lake.catalog import Catalog
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.lake.writing import WriteOptions
from penstock.spark.options import spark_options
from penstock.spark.refresh import SparkEngine

NAME = "tests.integration.spark.delta.limited:make"


def make(lake: Catalog, options: Mapping[str, Any]) -> SparkEngine:
    given = dict(options)
    limits = DeltaLimits(**given.pop("limits", {}))
    write = WriteOptions(**given.pop("write", {}))
    return SparkEngine(lake, spark_options(given), limits=limits, write=write)
