"""The output of `penstock entity`: for people, or lines of JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.cli.output import DIM, Output, visible, when
from penstock.client.space_calls import HistoryRow
from penstock.commits.model import Write
from penstock.protocol.answers import CommitAccepted, EntityState
from penstock.protocol.events import Records, Tombstone, TopicDeleted, WatchEvent


class _Recorded(msgspec.Struct):
    """The fields of a commit's record."""

    session: str
    local_seq: int
    writes: list[Write]
    event_id: str | None = None


class EntityOutput(Output):
    """The output of `penstock entity`."""

    def entity(self, state: EntityState) -> None:
        """One entity in full."""
        if self.plain:
            self.json(_row(state) | {"head": state.head})
            return
        from rich.text import Text

        self.console.print(Text(_pretty(state.doc)), soft_wrap=True)
        self._note(f"{state.entity}, written at seq {state.seq}, as of seq {state.head}", DIM)

    def entities(self, states: Iterable[EntityState]) -> None:
        """Entities, one on each line."""
        from rich.text import Text

        count = 0
        for state in states:
            count += 1
            if self.plain:
                self.json(_row(state))
            else:
                parts = [(f"{state.seq:>8} ", "bold"), (f"{state.entity} ", "cyan")]
                self.console.print(Text.assemble(*parts, _short(state.doc)), soft_wrap=True)
        if not count and not self.plain:
            self.console.print("no entities")

    def accepted(self, write: Write, accepted: CommitAccepted) -> None:
        """A change that took effect."""
        if self.plain:
            self.json({"entity": write.entity, "seq": accepted.seq, "ts": accepted.ts})
        else:
            self.console.print(f"{_verb(write)} {write.entity} at seq {accepted.seq}", markup=False)

    def commit(self, row: HistoryRow) -> None:
        """A commit that wrote an entity."""
        if self.plain:
            self.json(row)
            return
        for write in row.writes:
            self._line(row.seq, row.ts, row.session, write)

    def event(self, event: WatchEvent, names: Collection[str]) -> None:
        """An event of a watch: the writes to these entities, or to all if none are named."""
        match event:
            case Records():
                for record in event.records:
                    commit = record.data_as(_Recorded)
                    for write in _of(commit.writes, names):
                        self._change(record.seq, record.ts_ms, commit, write)
            case Tombstone():
                if self.plain:
                    gap = {"gap_from": event.gap_from, "gap_to": event.gap_to}
                    self.json({"tombstone": gap | {"reason": event.reason}})
                else:
                    text = f"seqs {event.gap_from} to {event.gap_to} are gone ({event.reason})"
                    self._note(text, "yellow")
            case TopicDeleted():
                if self.plain:
                    self.json({"space_deleted": event.topic})
                else:
                    self._note(f"{event.topic} was deleted", "yellow")
        sys.stdout.flush()

    def _change(self, seq: int, ts_ms: int, commit: _Recorded, write: Write) -> None:
        if self.plain:
            change = {"seq": seq, "ts": ts_ms, "session": commit.session}
            self.json(change | msgspec.to_builtins(write))
        else:
            self._line(seq, ts_ms, commit.session, write)

    def _line(self, seq: int, ts_ms: int, session: str, write: Write) -> None:
        from rich.text import Text

        what = write.patch if write.patch is not UNSET else write.set
        text = Text.assemble(
            (f"{seq:>8} ", "bold"),
            (f"{when(ts_ms)} ", DIM),
            (f"{visible(session)} ", "green"),
            f"{_verb(write)} ",
            (write.entity, "cyan"),
            "" if write.delete else f" {_short(what)}",
        )
        self.console.print(text, soft_wrap=True)

    def _note(self, text: str, style: str) -> None:
        from rich.text import Text

        self.console.print(Text(text, style))


def _row(state: EntityState) -> dict[str, Any]:
    return {"entity": state.entity, "seq": state.seq, "doc": state.doc}


def _of(writes: Iterable[Write], names: Collection[str]) -> Iterator[Write]:
    return (write for write in writes if not names or write.entity in names)


def _verb(write: Write) -> str:
    if write.delete:
        return "deleted"
    return "patched" if write.patch is not UNSET else "set"


def _short(document: Any) -> str:
    return visible(msgspec.json.encode(document).decode())


def _pretty(document: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return "\n".join(visible(line) for line in text.split("\n"))
