"""Every error that a program may want to catch, in one place.

The groups say what to do next; each of the others belongs to one of them.
"""

from penstock.client.errors import (
    ClientError,
    LeaseLost,
    OutcomeUnknown,
)
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

__all__ = [
    "Busy",
    "ClientError",
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
