"""What a watch of a table makes of frames, whatever cuts them off."""

from __future__ import annotations

from random import Random

import msgspec

from penstock.client.event_stream import Frame
from penstock.client.table_watching import TableWatchCore
from penstock.client.watching import Open, Pause, Stop
from penstock.flow.backoff import Backoff
from penstock.protocol.errors import ServerUnavailable, TableNotFound
from penstock.protocol.events import TableChanges


def core(after: str | None = None) -> TableWatchCore:
    return TableWatchCore("t", after, Backoff(1, 10, 0.5, 60_000), Random(1))


def rows(offset: int, place: str = "") -> Frame:
    data = {"table": "t", "snapshot": 5, "rows": [{"n": 1}], "offset": offset, "rows_total": 2}
    return Frame("rows", msgspec.json.encode(data), place)


def part(number: int, place: str = "", parts: int = 2) -> Frame:
    changes = [{"weight": 1, "row": {"n": number}}]
    data = {"table": "t", "after": 5, "snapshot": 6, "changes": changes, "part": number,
            "parts": parts}  # fmt: skip
    return Frame("changes", msgspec.json.encode(data), place)


def test_a_commit_is_returned_whole_and_the_position_moves_with_it() -> None:
    watch = core("u:5")
    assert watch.frame(part(0)) is None
    assert watch.position == "u:5"
    found = watch.frame(part(1, "u:6"))
    assert isinstance(found, TableChanges)
    assert [change.row for change in found.changes] == [{"n": 0}, {"n": 1}]
    assert watch.position == "u:6"


def test_a_part_that_a_lost_connection_cut_off_comes_again() -> None:
    watch = core("u:5")
    assert watch.frame(part(0)) is None
    watch.ended(0.0, ServerUnavailable("gone"))
    assert isinstance(watch.next_step(), Pause)
    step = watch.next_step()
    assert isinstance(step, Open)
    assert watch.stream_request(step).target == "/v0/tables/t/watch?after=u%3A5"
    assert watch.frame(part(0)) is None
    found = watch.frame(part(1, "u:6"))
    assert isinstance(found, TableChanges)
    assert len(found.changes) == 2


def test_rows_that_were_cut_off_are_read_anew() -> None:
    watch = core()
    watch.frame(rows(0))
    watch.ended(0.0, ServerUnavailable("gone"))
    assert watch.position is None
    watch.frame(rows(0))
    watch.frame(rows(1, "u:5"))
    assert watch.position == "u:5"


def test_a_table_that_is_gone_ends_the_watch() -> None:
    watch = core("u:5")
    watch.ended(0.0, TableNotFound("t"))
    step = watch.next_step()
    assert isinstance(step, Stop)
    assert isinstance(step.error, TableNotFound)
    assert watch.frame(Frame("later-protocol", b"{}", "")) is None
