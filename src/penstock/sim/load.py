"""The shapes of load that simulations offer: those of the load generator."""

from __future__ import annotations

from penstock.metering.shapes import (
    SHAPES,
    Arrivals,
    Day,
    Random,
    Sawtooth,
    Shape,
    Square,
    Steady,
    named_shape,
)

__all__ = [
    "SHAPES",
    "Arrivals",
    "Day",
    "Random",
    "Sawtooth",
    "Shape",
    "Square",
    "Steady",
    "named_shape",
]
