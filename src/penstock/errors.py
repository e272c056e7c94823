"""Every error that a program may want to catch, in one place.

The groups say what to do next; each of the others belongs to one of them.
"""

from penstock.client.errors import LeaseLost, OutcomeUnknown
from penstock.kernel.errors import (
    Busy,
    Conflict,
    Corrupt,
    Gone,
    PenstockError,
    Rejected,
    Unavailable,
    Unknown,
)
from penstock.protocol.errors import CallError

__all__ = [
    "Busy",
    "CallError",
    "Conflict",
    "Corrupt",
    "Gone",
    "LeaseLost",
    "OutcomeUnknown",
    "PenstockError",
    "Rejected",
    "Unavailable",
    "Unknown",
]
