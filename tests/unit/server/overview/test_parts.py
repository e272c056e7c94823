"""Parts by their last report: running, ended, or away after five silent seconds."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.protocol.own_topics import part_topic
from penstock.protocol.part_answers import (
    AWAY_AFTER_MS,
    GOODBYE_TAG,
    STATUS_TAG,
    PartReport,
    PartState,
)
from penstock.server.overview.parts import Reported, last_report, part_state
from penstock.server.overview.pipeline import DECISIONS_KEPT, Ledger, chosen, pipeline_state
from penstock.topics.core.batch import parse_write
from penstock.topics.core.topic import Topic

NOW_MS = 1_000_000
UP_MS = 500_000


def report(**more: object) -> PartReport:
    facts = {"pid": 7, "host": "a", "version": "1", "since": 10, "at": NOW_MS, **more}
    return PartReport(**facts)  # type: ignore[arg-type]


def judged(age_ms: int, *, ended: bool = False) -> PartState:
    reported = Reported("ingest.a.b", NOW_MS - age_ms, report(text="well", behind=3), ended)
    found = part_state(reported, now_ms=NOW_MS, up_ms=UP_MS)
    assert found is not None
    return found


def test_a_part_that_reports_is_as_it_says() -> None:
    found = judged(AWAY_AFTER_MS)
    assert (found.kind, found.node, found.state, found.text) == ("ingest", "a.b", "ok", "well")
    assert (found.away_since, found.behind, found.pid) == (None, 3, 7)


def test_a_part_that_is_silent_is_away_since_its_last_report() -> None:
    found = judged(AWAY_AFTER_MS + 1)
    assert (found.state, found.away_since) == ("away", NOW_MS - AWAY_AFTER_MS - 1)
    assert found.text == "has not reported for 5.0 s"


def test_a_part_that_ended_in_good_order_is_not_missed() -> None:
    found = judged(3_600_000, ended=True)
    assert (found.state, found.away_since) == ("ended", None)


@pytest.mark.parametrize("up_ms", [AWAY_AFTER_MS, AWAY_AFTER_MS + 1])
def test_after_a_start_of_the_server_a_part_has_time_to_report_again(up_ms: int) -> None:
    found = part_state(Reported("tables.a"), now_ms=NOW_MS, up_ms=up_ms)
    if up_ms <= AWAY_AFTER_MS:
        assert found is None
    else:
        assert found is not None
        assert (found.state, found.away_since) == ("away", NOW_MS - up_ms)


class Reports:
    """The topic of a part, as its records come in."""

    def __init__(self) -> None:
        self.topic = Topic(part_topic("ingest.a"), TopicConfig(), epoch=1, now_ms=0)

    def write(self, data: object, *, tag: str = STATUS_TAG, ts_ms: int = NOW_MS) -> None:
        body = msgspec.json.encode({"records": [{"data": data, "tag": tag}]})
        batch = parse_write(body, TopicLimits()).batch
        self.topic.apply_append(self.topic.stage_append(batch, ts_ms))


def stage(name: str = "store", **more: object) -> dict[str, object]:
    facts = {"window": 10, "occupied": 5, "occupancy": 0.5, "rate_per_s": 100.0, "bytes": 50}
    return {"name": name, **facts, **more}


def ingest(**more: object) -> dict[str, object]:
    facts = {"stages": [stage()], "edge": {"messages_acked_total": 9}, "budget_bytes": 100, **more}
    return msgspec.to_builtins(report(facts=facts, behind=500))  # type: ignore[no-any-return]


def read(ledger: Ledger, topic: Topic) -> Ledger:
    for _ in ledger.catch_up(topic):
        pass
    return ledger


def test_anything_but_a_report_counts_as_silence() -> None:
    reports = Reports()
    assert last_report(reports.topic).at is None
    reports.write({"not": "a report"})
    found = part_state(last_report(reports.topic), now_ms=NOW_MS + 1, up_ms=UP_MS)
    assert found is not None
    assert found.state == "away"
    assert read(Ledger(), reports.topic).facts is None
    reports.write(ingest(), tag=GOODBYE_TAG)
    assert last_report(reports.topic).ended


def test_the_pipeline_is_joined_from_the_reports() -> None:
    reports, ledger = Reports(), Ledger()
    reports.write(ingest(bottleneck="store", drain_per_s=1_000))
    part = part_state(last_report(reports.topic), now_ms=NOW_MS, up_ms=UP_MS)
    found = pipeline_state(part, read(ledger, reports.topic), NOW_MS)
    assert (found.state, found.bottleneck, found.behind, found.behind_ms) == (
        "running",
        "store",
        500,
        500,
    )
    assert found.memory is not None
    assert (found.memory.used_bytes, found.memory.budget_bytes) == (50, 100)
    assert found.stages[0].p99_ms is None, "a stage that finished nothing has no latency"
    assert pipeline_state(None, None, NOW_MS).state == "none"


def test_history_has_a_value_for_each_report_and_reads_each_once() -> None:
    reports, ledger = Reports(), Ledger()
    for second in range(3):
        reports.write(ingest(stages=[stage(window=second)]), ts_ms=NOW_MS + second)
    assert len(list(ledger.catch_up(reports.topic))) == 3
    assert list(ledger.catch_up(reports.topic)) == []
    reports.write(ingest(stages=[stage("parse")]), ts_ms=NOW_MS + 3)
    found = read(ledger, reports.topic).history(NOW_MS)
    assert found.t == [NOW_MS + 1, NOW_MS + 2, NOW_MS + 3]
    assert found.stages["store"].window == [1, 2, None]
    assert found.stages["parse"].held == [None, None, False]
    assert found.acked == [9, 9, 9]


def test_decisions_are_kept_once_with_the_newest_first_by_the_servers_clock() -> None:
    reports, ledger = Reports(), Ledger()

    def decision(at: int) -> dict[str, object]:
        return {"at": at, "stage": "store", "action": "grow", "window": at, "reason": "waited for"}

    reports.write(ingest(decisions=[decision(2), decision(1)]), ts_ms=NOW_MS + 100)
    reports.write(ingest(decisions=[decision(3), decision(2)]), ts_ms=NOW_MS + 100)
    found = read(ledger, reports.topic)
    assert [each.at for each in found.decisions] == [103, 102, 101]
    many = [decision(at) for at in range(1_000, 1_000 + 2 * DECISIONS_KEPT)]
    reports.write(ingest(decisions=many[::-1]), ts_ms=NOW_MS)
    assert len(read(ledger, reports.topic).decisions) == DECISIONS_KEPT


def test_a_topic_of_another_life_begins_anew() -> None:
    reports, ledger = Reports(), Ledger()
    reports.write(ingest())
    read(ledger, reports.topic)
    again = Reports()
    again.topic.told_epoch = 2
    again.write(ingest())
    assert len(read(ledger, again.topic).moments) == 1


def test_the_pipeline_that_is_most_alive_is_shown() -> None:
    def part(name: str, state: str, seen: int) -> PartState:
        return PartState(part=name, kind="ingest", node="", state=state, text="", seen=seen)

    parts = [part("ingest.a", "away", 9), part("ingest.b", "ok", 5), part("ingest.c", "ended", 9)]
    best, named = chosen(parts), chosen(parts, "ingest.c")
    assert best is not None
    assert best.part == "ingest.b"
    assert named is not None
    assert named.part == "ingest.c"
    assert chosen(parts, "ingest.z") is None
