"""The metering pipeline as a plain Structured Streaming job, for `bench_ingest` to compare with.

Messages are written to the raw topic at a pace by a thread, which notes when each was acknowledged.
The sink's cursor says how many rows are visible, and they become visible in the order of the topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.ingest_load import READINGS
from penstock.client import Client, Record
from penstock.lake.catalog import Catalog
from penstock.metering.parsing import PARSED, parse_batches
from penstock.metering.pipeline import CHARGES, metering
from penstock.metering.pipeline import READINGS as READING_COLUMNS
from penstock.metering.price_lookup import PriceLookup
from penstock.metering.pricing import PRICED, price_readings
from penstock.spark.pipeline.cursors import cursors
from penstock.spark.pipeline.stream_sink import LakeSink
from penstock.spark.topics.source import register

TOPIC = "streamed"
PACE_S = 0.05
NUMBERS = count()


class StreamedPipeline:
    """A running query from the topic to `readings` and `charges`."""

    def __init__(self, spark: Any, client: Client, url: str, lake: Catalog, catalog: str) -> None:
        self._client, self._lake = client, lake
        client.put_topic(TOPIC)
        register(spark)
        sink = LakeSink(
            catalog, {"readings": READING_COLUMNS, "charges": CHARGES},
            checkpoint=f"{lake.data_path.rstrip('/')}-checkpoint-{next(NUMBERS)}",
        )  # fmt: skip
        rows = priced(spark.readStream.format("penstock").options(url=url, topic=TOPIC).load(), url)
        self.query = (
            rows.writeStream.foreachBatch(sink)
            .option("checkpointLocation", sink.checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )

    def close(self) -> None:
        self.query.stop()

    def visible(self) -> int:
        """How many messages are in the lake."""
        found = cursors(self._lake)
        return sum(each.rows_stored for each in found) // READINGS

    def steady(self, records: list[Record], seconds: float, per_second: float) -> NDArray[Any]:
        """Write messages at a pace; after how many ms each was visible."""
        begin, acked = self.visible(), np.zeros(int(seconds * per_second))
        seen: list[tuple[int, float]] = [(begin, time.time())]
        writing = threading.Thread(target=self._write, args=(records, acked, per_second))
        writing.start()
        while seen[-1][0] < begin + len(acked):
            if (error := self.query.exception()) is not None:
                raise RuntimeError(f"the query ended: {error}")
            if (found := self.visible()) > seen[-1][0]:
                seen.append((found, time.time()))
            time.sleep(0.005)
        writing.join()
        places, times = (np.array(column) for column in zip(*seen, strict=True))
        shown = times[np.searchsorted(places, begin + 1 + np.arange(len(acked)))]
        return np.asarray(np.maximum(0.0, (shown - acked) * 1_000))

    def _write(self, records: list[Record], acked: NDArray[Any], per_second: float) -> None:
        begun, done = time.monotonic(), 0
        while done < len(acked):
            time.sleep(max(0.0, begun + done / per_second - time.monotonic()))
            step = min(len(acked) - done, max(1, int(per_second * PACE_S)))
            batch = [records[(done + n) % len(records)] for n in range(step)]
            self._client.write(TOPIC, batch, return_seqs=False)
            acked[done : done + step] = time.time()
            done += step


def priced(records: Any, url: str) -> Any:
    """Records of the raw topic to priced readings, with the functions of the metering pipeline."""
    from pyspark.sql.pandas.types import from_arrow_schema

    evaluate: Any = metering(url, TOPIC).pinned().evaluate
    spans, lists = evaluate.side.tables["spans"], evaluate.side.tables["lists"]

    def price(batches: Iterator[Any]) -> Iterator[Any]:  # here, so that it is sent by value
        lookup = PriceLookup(spans, lists)
        for batch in batches:
            yield price_readings(batch, lookup, 1, 1)

    raw = records.selectExpr(
        "seq AS _seq", "node AS device", "tag AS message_id", "ts AS received_at",
        "unbase64(trim(BOTH '\"' FROM data)) AS payload",
    )  # fmt: skip
    parsed = raw.mapInArrow(parse_batches, from_arrow_schema(PARSED))
    good = parsed.where("_reason IS NULL").drop("_reason")
    made = good.mapInArrow(price, from_arrow_schema(PRICED))
    return made.where("_reason IS NULL").drop("_seq", "_row", "_reason")
