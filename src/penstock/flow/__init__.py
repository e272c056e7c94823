"""Scheduling and back-pressure without IO: what runs next, how much, how hard, when to retry.

Pressure changes *when* work happens. It never changes *whether* it happens, its order within a key,
or what is visible. Clock and random source are passed in; `waiting_channels` has the wrappers that
may block.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.flow.ageing import AgeingQueue as AgeingQueue
    from penstock.flow.ageing import WaitingPlace as WaitingPlace
    from penstock.flow.backoff import Backoff as Backoff
    from penstock.flow.channel import Closed as Closed
    from penstock.flow.channel import WindowedChannel as WindowedChannel
    from penstock.flow.drain import Drain as Drain
    from penstock.flow.fairqueue import BandState as BandState
    from penstock.flow.fairqueue import FairQueue as FairQueue
    from penstock.flow.fairqueue import Place as Place
    from penstock.flow.fairqueue import Standing as Standing
    from penstock.flow.governor import Governor as Governor
    from penstock.flow.governor import Level as Level
    from penstock.flow.governor import Load as Load
    from penstock.flow.governor import Rung as Rung
    from penstock.flow.governor import Weights as Weights
    from penstock.flow.governor import climb as climb
    from penstock.flow.governor import hold_ms as hold_ms
    from penstock.flow.histogram import LatencyHistogram as LatencyHistogram
    from penstock.flow.meter import Measurement as Measurement
    from penstock.flow.meter import Sample as Sample
    from penstock.flow.meter import Stage as Stage
    from penstock.flow.meter import StageMeter as StageMeter
    from penstock.flow.meter import StageStatus as StageStatus
    from penstock.flow.planner import Decision as Decision
    from penstock.flow.planner import Plan as Plan
    from penstock.flow.planner import PlannerMemory as PlannerMemory
    from penstock.flow.planner import PlannerPolicy as PlannerPolicy
    from penstock.flow.planner import StageMemory as StageMemory
    from penstock.flow.planner import WindowPlanner as WindowPlanner
    from penstock.flow.priority import TOPIC_BANDS as TOPIC_BANDS
    from penstock.flow.priority import Bands as Bands
    from penstock.flow.priority import Urgency as Urgency
    from penstock.flow.priority import effective_priority as effective_priority
    from penstock.flow.priority import recency as recency
    from penstock.flow.tokens import Permits as Permits
    from penstock.flow.tokens import SqlTokenPool as SqlTokenPool
    from penstock.flow.tokens import TokenPool as TokenPool

# A command that needs only a back-off should not load every scheduler, so names are resolved
# through this table on first use. A test compares it with the imports above.
_HOMES: Final = {
    "AgeingQueue": "penstock.flow.ageing",
    "Backoff": "penstock.flow.backoff",
    "BandState": "penstock.flow.fairqueue",
    "Bands": "penstock.flow.priority",
    "Closed": "penstock.flow.channel",
    "Decision": "penstock.flow.planner",
    "Drain": "penstock.flow.drain",
    "FairQueue": "penstock.flow.fairqueue",
    "Governor": "penstock.flow.governor",
    "LatencyHistogram": "penstock.flow.histogram",
    "Level": "penstock.flow.governor",
    "Load": "penstock.flow.governor",
    "Measurement": "penstock.flow.meter",
    "Permits": "penstock.flow.tokens",
    "Place": "penstock.flow.fairqueue",
    "Plan": "penstock.flow.planner",
    "PlannerMemory": "penstock.flow.planner",
    "PlannerPolicy": "penstock.flow.planner",
    "Rung": "penstock.flow.governor",
    "Sample": "penstock.flow.meter",
    "SqlTokenPool": "penstock.flow.tokens",
    "Stage": "penstock.flow.meter",
    "StageMemory": "penstock.flow.planner",
    "StageMeter": "penstock.flow.meter",
    "StageStatus": "penstock.flow.meter",
    "Standing": "penstock.flow.fairqueue",
    "TOPIC_BANDS": "penstock.flow.priority",
    "TokenPool": "penstock.flow.tokens",
    "Urgency": "penstock.flow.priority",
    "WaitingPlace": "penstock.flow.ageing",
    "Weights": "penstock.flow.governor",
    "WindowPlanner": "penstock.flow.planner",
    "WindowedChannel": "penstock.flow.channel",
    "climb": "penstock.flow.governor",
    "effective_priority": "penstock.flow.priority",
    "hold_ms": "penstock.flow.governor",
    "recency": "penstock.flow.priority",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.flow' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
