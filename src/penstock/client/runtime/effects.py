"""What a runtime's core wants done, in this order."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.runtime.events import Ticket
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.telemetry import CommitReport, Failure
from penstock.commits.model import Commit


class Run(NamedTuple):
    """Run the entry's handler over its transaction, then say how it `ran`."""

    entry: Entry


class Transmit(NamedTuple):
    """Send this commit, byte for byte the same each time it is asked for."""

    commit: Commit


class Tell(NamedTuple):
    """Tell those that wait for this outcome."""

    ticket: Ticket


class Report(NamedTuple):
    """Give this to the callbacks for commits."""

    report: CommitReport


class Fail(NamedTuple):
    """Give this to the error channel."""

    failure: Failure


Effect = Run | Transmit | Tell | Report | Fail
