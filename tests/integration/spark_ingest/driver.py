"""Runs the metering pipeline until it is killed: `python driver.py lake url topic spark-url`."""

from __future__ import annotations

import sys

from penstock.lake.shell import open_catalog
from penstock.spark.ingest.metering import metering
from penstock.spark.ingest.runner import PipelineRunner, RunnerOptions
from penstock.spark.ingest.sparks import Sparks
from penstock.spark.options import SparkOptions


def main() -> None:
    address, url, topic, spark_url = sys.argv[1:]
    with open_catalog(address) as lake:
        sparks = Sparks(SparkOptions(remote=spark_url))
        options = RunnerOptions(wait_ms=200, linger_ms=0)
        runner = PipelineRunner(metering(lake, topic), lake, url, sparks=sparks, options=options)
        for stage in runner.stages:
            stage.resize(200)  # many small batches: more moments to die at
        runner.run()


if __name__ == "__main__":
    main()
