"""Runs the metering pipeline until it is killed: `… lake url topic spark-url`.

`own` instead of the URL of a Spark: it starts one.
"""

from __future__ import annotations

import logging
import sys

from penstock.lake.catalog import open_catalog
from penstock.metering.pipeline import metering
from penstock.spark.link import SparkLink
from penstock.spark.options import SparkOptions
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from tests.integration.spark.one import OPTIONS
from tests.integration.spark.pipeline.fleet import space_of


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    address, url, topic, spark_url = sys.argv[1:]
    with open_catalog(address) as lake:
        link = SparkLink(OPTIONS if spark_url == "own" else SparkOptions(remote=spark_url))
        options = RunnerOptions(wait_ms=200, linger_ms=0)
        pipeline = metering(url, topic, tariffs=space_of(topic))
        runner = PipelineRunner(pipeline, lake, url, link=link, options=options)
        for stage in runner.stages:
            stage.resize(1_000)  # small batches: more moments to die at
        try:
            runner.run()
        finally:
            link.close()


if __name__ == "__main__":
    main()
