"""What a topic must be after the operations that were answered: a plain model of the rules."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.integration.server.crash.payloads import Wanted
from tests.integration.server.crash.wire import Whole

DEFAULTS: dict[str, Any] = {"cap_records": 0, "cap_bytes": 0, "discard": "old", "priority": None}
"""What a topic has of the keys that tests change, until they do."""


@dataclass
class TopicModel:
    """One topic that one client alone works on. Every method is an answered operation."""

    config: dict[str, Any] = field(default_factory=lambda: {"durability": "disk"})
    head: int = 0
    live: dict[int, Wanted] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    unlogged_keys: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)  # what happened, for whoever must find out why
    unlogged: set[int] = field(default_factory=set)  # seqs that memory alone has

    def copy(self) -> TopicModel:
        return deepcopy(self)

    def takes(self, records: list[Wanted]) -> bool:
        """Whether there is room for a write."""
        if self.config.get("discard", "old") == "old":
            return True
        cap, cap_bytes = self.config.get("cap_records", 0), self.config.get("cap_bytes", 0)
        size = sum(record.size_bytes for record in [*self.live.values(), *records])
        fits = not cap or len(self.live) + len(records) <= cap
        return fits and (not cap_bytes or size <= cap_bytes)

    def append(self, records: list[Wanted], key: str | None) -> tuple[int, int]:
        first = self.head + 1
        self.story.append(f"write {first}+{len(records)} {key or ''} {self.config['durability']}")
        for record in records:
            self.head += 1
            self.live[self.head] = record
        if key is not None:
            self.keys[key] = (first, self.head)
        if self.config["durability"] == "ephemeral":
            self.unlogged |= set(range(first, self.head + 1))
            self.unlogged_keys |= {key} - {None}
        self._enforce()
        return first, self.head

    def delete(self, before_seq: int | None, tag: str | None) -> int:
        def matches(found: str | None) -> bool:
            if tag is None:
                return True
            if tag.endswith("*"):
                return found is not None and found.startswith(tag[:-1])
            return found == tag

        gone = [
            seq
            for seq, record in self.live.items()
            if (before_seq is None or seq < before_seq) and matches(record.tag)
        ]
        for seq in gone:
            del self.live[seq]
        self.story.append(f"delete before {before_seq} tag {tag}: {gone}")
        return len(gone)

    def configure(self, changes: dict[str, Any]) -> None:
        self.config |= changes
        self.story.append(f"put {changes}")
        self._enforce()

    def _enforce(self) -> None:
        if self.config.get("discard") == "reject":
            return
        if cap := self.config.get("cap_records", 0):
            for seq in [seq for seq in self.live if seq <= self.head - cap]:
                del self.live[seq]
        if cap_bytes := self.config.get("cap_bytes", 0):
            size = sum(record.size_bytes for record in self.live.values())
            for seq in sorted(self.live):
                if size <= cap_bytes:
                    break
                size -= self.live.pop(seq).size_bytes

    def restart(self, head: int) -> None:
        """The server was started again: what memory alone had is gone."""
        self.story.append(f"restart at {head}")
        for key in self.unlogged_keys:
            del self.keys[key]  # a key is as durable as the records it guards
        self.unlogged_keys.clear()
        for seq in self.unlogged & self.live.keys():
            del self.live[seq]
        if self.config["durability"] == "ephemeral" and self.unlogged:
            self.head = max(self.head, head)  # seqs that were set aside are passed over
            self._enforce()

    def differs(self, whole: Whole) -> str | None:
        """What is not as it must be; None if everything is."""
        expected = {**DEFAULTS, **self.config}  # or a change that nobody heard of goes unseen
        if not expected.items() <= whole.config.items():
            return f"config {whole.config}, expected {expected}"
        if whole.head_seq != self.head:
            return f"head {whole.head_seq}, expected {self.head}"
        if lost := sorted(self.live.keys() - whole.records.keys()):
            return f"seqs {lost[:20]} are lost"
        if risen := sorted(whole.records.keys() - self.live.keys()):
            return f"seqs {risen[:20]} are there, expected them gone"
        earliest = min(self.live, default=self.head + 1)
        if whole.earliest_seq != earliest:
            return f"earliest {whole.earliest_seq}, expected {earliest}"
        for seq, record in whole.records.items():
            found = Wanted(bytes(record.data), record.tag, record.node, record.meta_bytes)
            if found != self.live[seq]:
                return f"seq {seq} is {found}, expected {self.live[seq]}"
        return None
