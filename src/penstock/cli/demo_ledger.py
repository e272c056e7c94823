"""What the demonstration's meters were promised and what arrived: lost, twice, out of order.

>>> ledger = Ledger()
>>> ledger.acknowledged("meter-1", 3)
>>> for number in (1, 2, 2, 4):
...     ledger.delivered("meter-1", number)
>>> ledger.twice, ledger.missing, ledger.is_right
(1, 1, False)
"""

from __future__ import annotations

from collections import Counter


class Ledger:
    """Every meter numbers its readings from 1; a watcher should see each number once, in order."""

    def __init__(self) -> None:
        self.acked: Counter[str] = Counter()
        """Readings of each meter that the server acknowledged."""
        self.seen: Counter[str] = Counter()
        """The last number of each meter that the watcher saw."""
        self.closed = False
        """Set when everything has had its time to arrive."""
        self.twice = 0
        self.skipped = 0
        self.jobs_acked = 0
        """Acknowledged readings that must become jobs."""
        self.jobs_done: set[tuple[str, int]] = set()
        self.jobs_again = 0
        """Jobs handed out more than once: what was leased when the server was killed."""

    def acknowledged(self, meter: str, count: int, jobs: int = 0) -> None:
        """The server took so many readings of a meter, some of which are jobs."""
        self.acked[meter] += count
        self.jobs_acked += jobs

    def delivered(self, meter: str, number: int) -> None:
        """The watcher got a reading."""
        last = self.seen[meter]
        if number <= last:
            self.twice += 1
            return
        self.skipped += number - last - 1
        self.seen[meter] = number

    def done(self, meter: str, number: int) -> None:
        """The worker finished a job."""
        if (meter, number) in self.jobs_done:
            self.jobs_again += 1
        self.jobs_done.add((meter, number))

    @property
    def missing(self) -> int:
        """Acknowledged readings that the watcher did not get, or not yet."""
        behind = sum(max(0, count - self.seen[meter]) for meter, count in self.acked.items())
        return self.skipped + behind

    @property
    def jobs_missing(self) -> int:
        """Jobs that wait to be done."""
        return max(0, self.jobs_acked - len(self.jobs_done))

    @property
    def is_right(self) -> bool:
        """Whether nothing came twice or out of order and, once closed, nothing is missing."""
        late = self.missing + self.jobs_missing if self.closed else self.skipped
        return self.twice == 0 and late == 0
