"""The metering pipeline: meter messages to the tables `readings` and `charges`.

>>> from penstock.metering.pipeline import metering           # doctest: +SKIP
>>> run(metering("http://127.0.0.1:4000", "ingest.raw"), …)   # doctest: +SKIP
"""

from __future__ import annotations

from typing import Final

from penstock.ingest.raw_topic import RAW_TOPIC
from penstock.metering.parsing import PARSED, parse_batches
from penstock.metering.pricing import Pricing
from penstock.metering.tariffs import SPACE
from penstock.spark.pipeline.definition import ArrowStep, Pipeline
from penstock.spark.topics.http import TopicAddress

_ORIGIN: Final = ("device", "message_id", "received_at")
MEASURED: Final = tuple(
    name for name in PARSED.names if name not in _ORIGIN and not name.startswith("_")
)
"""What a meter says: meter, time, energy_wh, quality."""
READINGS: Final = (*MEASURED, "device", "message_id", "row_no", "received_at")
CHARGES: Final = (
    "meter", "time", "energy_wh", "tariff", "price_per_kwh", "charge", "device", "message_id",
    "row_no", "tariffs_epoch", "tariffs_seq",
)  # fmt: skip

parse: Final = ArrowStep(parse_batches, PARSED)
"""Messages to readings; one that cannot be read is a row with a reason."""

ASK_S: Final = 2.0
"""How long one try to reach the space may take; the runner retries and reports why."""


def metering(
    url: str,
    topic: str = RAW_TOPIC,
    *,
    tariffs: str = SPACE,
    api_key: str | None = None,
    name: str = "metering",
    horizon: int = 100_000,
) -> Pipeline:
    """The pipeline from a raw topic of meter messages to the tables `readings` and `charges`.

    `tariffs` is the space with the prices, on the server at `url`.
    """
    return Pipeline(
        topic,
        parse,
        Pricing(TopicAddress(url, tariffs, api_key, ASK_S)),
        {"readings": READINGS, "charges": CHARGES},
        name=name,
        payload="base64",
        horizon=horizon,
    )
