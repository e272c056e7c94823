"""Which messages of a topic were there before: by device and message id, within a horizon.

>>> seen = Seen(horizon=2)
>>> [seen.is_new(seq, device, "1") for seq, device in enumerate("aabab", start=1)]
[True, False, True, False, False]
>>> seen.is_new(9, "a", "1")
True
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Seen:
    """The messages of the last `horizon` records of a topic.

    A record counts as seen whether or not it was a duplicate itself, so the verdict on a record
    depends on the records of the topic alone, and is the same whoever asks and when.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._last: dict[tuple[str, str], int] = {}

    def is_new(self, seq: int, device: str | None, message_id: str | None) -> bool:
        """Take note of a record; whether its message is the first of its kind. In order of seq."""
        if device is None or message_id is None:
            return True
        key = (device, message_id)
        before = self._last.pop(key, None)
        self._last[key] = seq
        if len(self._last) > 2 * self._horizon + 1_024:
            self._forget(seq)
        return before is None or seq - before > self._horizon

    def first_of_each(self, messages: pa.Table) -> NDArray[np.bool_]:
        """Which messages of a batch are new; they have `_seq`, `device` and `message_id`."""
        columns = (messages.column(name).to_pylist() for name in ("_seq", "device", "message_id"))
        return np.fromiter((self.is_new(*row) for row in zip(*columns, strict=True)), np.bool_)

    def _forget(self, seq: int) -> None:
        """The oldest come first, as a key that comes again goes to the end."""
        old = 0
        for last in self._last.values():
            if seq - last <= self._horizon:
                break
            old += 1
        for key in list(islice(self._last, old)):
            del self._last[key]
