"""Readings to charges, with the prices of a space of tariffs and meters.

A batch is priced with the space as it is at one seq, that of its head when the batch comes to be
evaluated, and each charge records which. Which of the prices counts for a reading depends on the
reading's time. A reading without a price becomes a dead letter.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.metering.errors import NoTariffs
from penstock.metering.parsing import PARSED
from penstock.metering.price_book import PRICE, Book, Books
from penstock.metering.price_lookup import CHARGE, PriceLookup, charges, decimals, micros_of
from penstock.spark.pipeline.definition import ArrowStep, Batches, Pinned, SideInput
from penstock.spark.pipeline.space import SpaceCopy
from penstock.spark.topics.http import TopicAddress, TopicMissing

UNKNOWN_METER: Final = "unknown_meter: the meter has no tariff at this time"
PRICED: Final = pa.schema(
    [
        *PARSED,
        pa.field("row_no", pa.int32()),
        pa.field("tariff", pa.string()),
        pa.field("price_per_kwh", PRICE),
        pa.field("charge", CHARGE),
        pa.field("tariffs_epoch", pa.int64()),
        pa.field("tariffs_seq", pa.int64()),
    ]
)


class Pricing:
    """Readings to charges, with the prices of a space. Threads may share it."""

    def __init__(self, address: TopicAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._copy = SpaceCopy(address)
        self._books = Books()
        self._side: tuple[Book, SideInput] | None = None

    def pin(self) -> Pinned:
        """Prices as they are now, with every change that the server has acknowledged.

        A space that has no tariff, or none for any meter, is one that is being loaded: tariffs come
        in one commit and meters in the next, and every reading in between would be a dead letter.
        """
        with self._lock:
            self._catch_up()
            side, basis = self._shipped(self._books.book), self._copy.basis
        priced = partial(price_batches, epoch=basis.epoch, seq=basis.seq)
        return Pinned(ArrowStep(priced, PRICED, side), basis)

    def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        with self._lock:
            self._copy.close()

    def _catch_up(self) -> None:
        address, load = self._address, "load them with `penstock metering tariffs load`"
        try:
            changed = self._copy.catch_up()
        except TopicMissing as error:
            raise TopicMissing(
                f"there are no tariffs: {address.url} has no space {address.topic!r}; {load}"
            ) from error
        self._books.update(self._copy.documents, changed)
        missing = self._books.missing
        if missing is not None:
            raise NoTariffs(
                f"there are no tariffs: space {address.topic!r} at {address.url} has no {missing}; "
                f"{load}"
            )

    def _shipped(self, book: Book) -> SideInput:
        """A book for workers; the same until the book is another."""
        if self._side is None or self._side[0] is not book:
            tables = {"spans": book.spans, "lists": book.lists}
            self._side = book, SideInput(uuid4().hex, tables, PriceLookup.load)
        return self._side[1]


def price_batches(batches: Batches, lookup: PriceLookup, *, epoch: int, seq: int) -> Batches:
    """For a task: readings in, readings with their prices out; one without has a reason."""
    for batch in batches:
        yield price_readings(batch, lookup, epoch, seq)


def price_readings(
    batch: pa.RecordBatch, lookup: PriceLookup, epoch: int, seq: int
) -> pa.RecordBatch:
    """Find each reading's price and charge, with tariffs as they were at a seq."""
    count = batch.num_rows
    energy = micros_of(batch["energy_wh"])
    found = lookup.find(batch["meter"], batch["time"].cast(pa.int64()).to_numpy())
    places = pa.array(np.maximum(found.lists, 0), mask=found.lists < 0)
    reasons = pc.if_else(pc.is_null(places), UNKNOWN_METER, pc.take(lookup.problems, places))
    columns = {
        **{name: batch[name] for name in batch.schema.names},
        "_reason": reasons,
        "row_no": batch["_row"],
        "tariff": pc.take(lookup.tariffs, places),
        "price_per_kwh": decimals(found.micro, PRICE),
        "charge": charges(energy, found.micro),
        "tariffs_epoch": pa.array(np.full(count, epoch, np.int64)),
        "tariffs_seq": pa.array(np.full(count, seq, np.int64)),
    }
    return pa.record_batch([columns[name] for name in PRICED.names], schema=PRICED)
