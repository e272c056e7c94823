"""Penstock under one seed: virtual time, generated load and generated latencies, the real parts.

Nothing here waits or starts a thread. A run is a function of its seed and its settings, so a
failure is replayed by handing in the same two.
"""

from penstock.sim.latency import Bimodal, Exponential, Latency, Lognormal, Uniform
from penstock.sim.load import Arrivals, Day, Random, Sawtooth, Shape, Square, Steady, named_shape
from penstock.sim.pipeline import STAGES, Lost, Pipeline, Second, Settings
from penstock.sim.sizes import Sizes
from penstock.sim.stage import Batches, Service, Stage, Workers
from penstock.sim.topics import Group, Topic, Topics, TopicsSettings

__all__ = [
    "STAGES",
    "Arrivals",
    "Batches",
    "Bimodal",
    "Day",
    "Exponential",
    "Group",
    "Latency",
    "Lognormal",
    "Lost",
    "Pipeline",
    "Random",
    "Sawtooth",
    "Second",
    "Service",
    "Settings",
    "Shape",
    "Sizes",
    "Square",
    "Stage",
    "Steady",
    "Topic",
    "Topics",
    "TopicsSettings",
    "Uniform",
    "Workers",
    "named_shape",
]
