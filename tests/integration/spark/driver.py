"""A driver with a Spark of its own that writes and never commits: to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from penstock.lake.catalog import open_catalog
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.lake.writing import WriteOptions, write_table
from penstock.spark.link import new_session
from penstock.spark.options import SparkOptions
from tests.integration.spark.one import QUICK


def main(address: str, data_path: str, cache: str) -> None:
    options = SparkOptions(cores=1, memory_mb=512, cache_dir=Path(cache), conf=QUICK)
    embedded = start_spark(options)
    lake = open_catalog(address, data_path)
    change = lake.begin(reserve_ms=1)
    table = change.create_table(lake.schema("main"), "t", pa.schema([("id", pa.int64())]))
    frame = new_session(embedded.url).sql("SELECT id FROM range(0, 100, 1, 3)")
    limits = WriteOptions(collect_rows_max=-1, small_bytes=1)
    written = write_table(
        lake.storage, table, frame, token=change.token, rows_expected=100, options=limits
    )
    print(embedded.pid, len(written.files), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
