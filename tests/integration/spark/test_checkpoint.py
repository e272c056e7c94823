"""Rows inside Spark stay until they are let go, and the collector of garbage asks nobody."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from penstock.spark.checkpoint import checkpoint, release
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.link import connect


def test_rows_are_held_until_they_are_let_go(spark: Any) -> None:
    frame = checkpoint(spark.range(5).selectExpr("id", "uuid() AS mark"))
    first = frame.collect()
    assert frame.collect() == first, "a query that is run again would give other marks"
    # Of rows that were used, Spark remembers the plan for a while.
    unused = checkpoint(spark.range(5))
    for each in (frame, unused):
        release(each)
    with pytest.raises(Exception, match="DATAFRAME_NOT_FOUND"):
        unused.collect()


def test_the_end_of_a_frame_makes_no_call(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = checkpoint(spark.range(5))
    asked: list[object] = []
    monkeypatch.setattr(spark.client, "_channel", Channel(asked))
    del frame
    gc.collect()
    assert asked == []


def test_a_session_that_is_closed_holds_nothing(embedded: EmbeddedSpark) -> None:
    with connect(embedded.url) as session:
        frame = checkpoint(session.range(5))
    release(frame)


class Channel:
    """Notes what is asked of a server."""

    def __init__(self, asked: list[object]) -> None:
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        raise AssertionError(name)
