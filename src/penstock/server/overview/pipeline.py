"""The ingest pipeline as it reports itself, now and over the last 15 minutes.

Its reports are records of a topic. A ledger keeps what was read of them as columns, so that a look
reads only what came since the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import structs

from penstock.protocol.own_topics import REPORTS_KEPT
from penstock.protocol.part_answers import (
    GOODBYE_TAG,
    IngestFacts,
    PartReport,
    PartState,
    PipelineHistory,
    PipelineMemory,
    PipelineState,
    PlannerDecision,
    StageHistory,
    StageState,
)
from penstock.topics.core.topic import Topic

DECISIONS_KEPT: Final = 100
_decode: Final = msgspec.json.Decoder(PartReport).decode
_STATES: Final = {"ok": "running", "failing": "waiting"}
"""The states of a part as those of a pipeline, where they differ."""


class Moment:
    """What one report adds to the history."""

    __slots__ = ("acked", "at", "behind", "bottleneck", "stages")

    def __init__(self, at: int, report: PartReport, facts: IngestFacts) -> None:
        self.at = at
        self.behind = report.behind
        self.bottleneck = facts.bottleneck
        self.acked = facts.edge.get("messages_acked_total")
        self.stages = {stage.name: stage for stage in facts.stages}


class Ledger:
    """The reports of one ingest part: what was read of its topic."""

    def __init__(self) -> None:
        self.moments: deque[Moment] = deque(maxlen=REPORTS_KEPT)
        self.decisions: deque[PlannerDecision] = deque(maxlen=DECISIONS_KEPT)
        """The newest first."""
        self.facts: IngestFacts | None = None
        self._epoch: int | None = None
        self._seq = 0

    def catch_up(self, topic: Topic) -> Iterator[None]:
        """Read the reports that came since, one in each step."""
        if self._epoch != topic.told_epoch:
            self.__init__()  # type: ignore[misc]  # another topic of this name
            self._epoch = topic.told_epoch
        slots = list(topic.live(self._seq, topic.head_seq))
        self._seq = topic.head_seq
        for slot in slots:
            if slot.record.tag != GOODBYE_TAG:
                self._take(slot.ts_ms, bytes(slot.record.data))
            yield

    def _take(self, ts_ms: int, data: bytes) -> None:
        try:
            report = _decode(data)
            facts = msgspec.convert(report.facts, IngestFacts)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return
        self.facts = facts
        self.moments.append(Moment(ts_ms, report, facts))
        later_ms = ts_ms - report.at  # the server's clock counts
        known = {(each.stage, each.at) for each in self.decisions}
        for decision in reversed(facts.decisions):
            moved = structs.replace(decision, at=decision.at + later_ms)
            if (moved.stage, moved.at) not in known:
                self.decisions.appendleft(moved)

    def history(self, since_ms: int = 0) -> PipelineHistory:
        """The moments after a time as columns."""
        moments = [moment for moment in self.moments if moment.at > since_ms]
        names = list(dict.fromkeys(name for moment in moments for name in moment.stages))
        return PipelineHistory(
            t=[moment.at for moment in moments],
            bottleneck=[moment.bottleneck for moment in moments],
            behind=[moment.behind for moment in moments],
            acked=[moment.acked for moment in moments],
            stages={name: _columns([m.stages.get(name) for m in moments]) for name in names},
        )


def _columns(stages: list[StageState | None]) -> StageHistory:
    return StageHistory(
        **{
            field: [None if stage is None else getattr(stage, field) for stage in stages]
            for field in StageHistory.__struct_fields__
        }
    )


def pipeline_state(part: PartState | None, ledger: Ledger | None, at: int) -> PipelineState:
    """The pipeline by the last report of its part."""
    if part is None or ledger is None or ledger.facts is None:
        return PipelineState(at=at, state="none", text="no pipeline reports to this server")
    facts = ledger.facts
    return PipelineState(
        at=at,
        state=_STATES.get(part.state, part.state),
        text=part.text,
        part=part.part,
        seen=part.seen,
        away_since=part.away_since,
        stages=facts.stages,
        bottleneck=facts.bottleneck,
        behind=part.behind,
        behind_ms=behind_ms(part.behind, facts.drain_per_s),
        stored_seq=facts.stored_seq,
        drain_per_s=facts.drain_per_s,
        trouble=facts.trouble,
        memory=PipelineMemory(
            used_bytes=sum(stage.bytes for stage in facts.stages),
            budget_bytes=facts.budget_bytes,
            by_stage={stage.name: stage.bytes for stage in facts.stages},
        ),
        decisions=list(ledger.decisions),
        edge=facts.edge,
        tariffs=facts.tariffs,
    )


def behind_ms(behind: int | None, drain_per_s: int | None) -> int | None:
    """How long a backlog is work at a pace; None if nothing drains.

    >>> behind_ms(500, 1_000), behind_ms(500, 0), behind_ms(0, 0)
    (500, None, 0)
    """
    if behind == 0:
        return 0
    return None if behind is None or not drain_per_s else round(1_000 * behind / drain_per_s)


def chosen(parts: Iterable[PartState], wanted: str | None = None) -> PartState | None:
    """The ingest part that is asked for, or the one that is most alive."""
    found = [part for part in parts if part.kind == "ingest" and wanted in (None, part.part)]
    order = {"away": 1, "ended": 2}
    return min(found, key=lambda p: (order.get(p.state, 0), -(p.seen or 0)), default=None)
