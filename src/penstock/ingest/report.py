"""What an ingest part tells the server of itself: its status as the structs of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.protocol.part_answers import IngestFacts, PlannerDecision, StageState

HOLDS: Final = "store"
"""The stage that can be held by hand."""


def ingest_facts(
    status: Mapping[str, Any],
    *,
    now_ms: int,
    after_ms: int,
    budget_bytes: int,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
) -> IngestFacts:
    """The facts of a status of an edge, alone or with a pipeline behind it.

    Only the planner's decisions after a time are told: the server keeps the earlier ones. To leave
    a window as it is, is no decision.
    """
    pipeline = status.get("pipeline") or {}
    return IngestFacts(
        stages=[_stage(stage, pipeline) for stage in status["stages"]],
        bottleneck=status["bottleneck"],
        decisions=[
            PlannerDecision(
                at=now_ms - each["ago_ms"],
                stage=each["stage"],
                action=each["action"],
                window=each["window"],
                reason=each["reason"],
            )
            for each in status["decisions"]
            if now_ms - each["ago_ms"] > after_ms and each["action"] != "hold"
        ],
        budget_bytes=budget_bytes,
        edge=status["edge"],
        stored_seq=pipeline.get("stored_seq"),
        drain_per_s=pipeline.get("drain_per_s"),
        trouble=pipeline.get("trouble"),
        tariffs=pipeline.get("tariffs"),
        reads=list(reads),
        writes=list(writes),
    )


def state_of(status: Mapping[str, Any]) -> tuple[str, str]:
    """The part in one word and one sentence."""
    pipeline = status.get("pipeline") or {}
    if pipeline.get("trouble"):
        return "failing", str(pipeline["trouble"])
    if pipeline.get("held"):
        return "held", f"{HOLDS} is held by hand"
    neck = status["bottleneck"]
    return "ok", "all stages keep up" if neck is None else f"the bottleneck is {neck}"


def _stage(stage: Mapping[str, Any], pipeline: Mapping[str, Any]) -> StageState:
    p50_ns, p99_ns = stage["p50_ns"], stage["p99_ns"]
    may_hold = bool(pipeline) and stage["name"] == HOLDS
    return StageState(
        name=stage["name"],
        window=stage["window"],
        occupied=stage["occupied"],
        occupancy=round(stage["occupancy"], 4),
        rate_per_s=round(stage["rate_per_s"], 1),
        p50_ms=None if p50_ns is None else round(p50_ns / 1e6, 3),
        p99_ms=None if p99_ns is None else round(p99_ns / 1e6, 3),
        busy=round(stage["busy"], 4),
        bytes=round(stage["occupied"] * stage["bytes_per_slot"]),
        items_in=stage["items_in"],
        items_out=stage["items_out"],
        credits_granted=stage["credits_granted"],
        backpressure_events=stage["backpressure_events"],
        refused=stage["refused"],
        stuck_ms=stage["stuck_ms"],
        warming=stage["warming"],
        held=may_hold and bool(pipeline.get("held")),
        may_hold=may_hold,
        note=stage["note"].removeprefix(f"{stage['name']}: "),
    )
