"""Scheduling and backpressure without IO: who is next, how much, how hard, when again.

Pressure changes *when* work happens, never *whether*, in which order within a key, or what is
visible. Clock and random source are handed in. Faces that wait are in `penstock.flow.shell`.
"""

from penstock.flow.ageing import AgeingQueue, WaitingPlace
from penstock.flow.backoff import Backoff
from penstock.flow.channel import Closed, WindowedChannel
from penstock.flow.drain import Drain
from penstock.flow.fairqueue import BandState, FairQueue, Place, Standing
from penstock.flow.governor import Governor, Level, Load, Rung, Weights, climb, hold_ms
from penstock.flow.histogram import LatencyHistogram
from penstock.flow.meter import Measurement, Stage, StageMeter, StageStatus
from penstock.flow.planner import Plan, PlannerMemory, PlannerPolicy, StageMemory, WindowPlanner
from penstock.flow.priority import TOPIC_BANDS, Bands, Urgency, effective_priority, recency
from penstock.flow.tokens import Permits, SqlTokenPool, TokenPool

__all__ = [
    "TOPIC_BANDS",
    "AgeingQueue",
    "Backoff",
    "BandState",
    "Bands",
    "Closed",
    "Drain",
    "FairQueue",
    "Governor",
    "LatencyHistogram",
    "Level",
    "Load",
    "Measurement",
    "Permits",
    "Place",
    "Plan",
    "PlannerMemory",
    "PlannerPolicy",
    "Rung",
    "SqlTokenPool",
    "Stage",
    "StageMemory",
    "StageMeter",
    "StageStatus",
    "Standing",
    "TokenPool",
    "Urgency",
    "WaitingPlace",
    "Weights",
    "WindowPlanner",
    "WindowedChannel",
    "climb",
    "effective_priority",
    "hold_ms",
    "recency",
]
