"""The effects that a runtime's core requests, in this order."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.runtime.events import Ticket
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.telemetry import CommitReport, Failure
from penstock.commits.model import Commit


class Run(NamedTuple):
    """Run the entry's handler on its transaction, then call `ran` with the result."""

    entry: Entry


class Transmit(NamedTuple):
    """Send this commit, byte for byte the same each time."""

    commit: Commit


class Tell(NamedTuple):
    """Call back those that wait for this outcome."""

    ticket: Ticket


class Report(NamedTuple):
    """Pass this to the commit callbacks."""

    report: CommitReport


class Fail(NamedTuple):
    """Pass this to the error callbacks."""

    failure: Failure


Effect = Run | Transmit | Tell | Report | Fail
