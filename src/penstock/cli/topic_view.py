"""What `penstock topic` prints: tables for people, lines of JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.client.results import (
    Gap,
    RecordDeletion,
    StoredRecord,
    TopicDeletion,
    TopicRow,
    TopicState,
    Written,
)
from penstock.client.watching import CaughtUp, Records, Tombstone, TopicDeleted, WatchEvent
from penstock.kernel.units import format_bytes

_DIM: Final = "bright_black"


class Output:
    """Prints answers; plain JSON unless standard output is a terminal and nobody asked for it."""

    def __init__(self, as_json: bool) -> None:
        self._console = Console(highlight=False)
        self._plain = as_json or not self._console.is_terminal
        self._count = 0
        self._last_seq = 0

    def written(self, written: Written) -> None:
        """A write that landed."""
        if self._plain:
            self._json(written)
            return
        note = " (it had landed before)" if written.deduped else ""
        seqs = f"seq {written.first_seq}"
        if written.count > 1:
            seqs = f"seqs {written.first_seq} to {written.last_seq}"
        self._console.print(f"wrote {_many(written.count, 'record')} as {seqs}{note}")

    def written_some(self, written: Written) -> None:
        """One batch of many."""
        self._count += written.count
        self._last_seq = written.last_seq
        if self._plain:
            self._json(written)

    def written_all(self) -> None:
        """The end of many batches."""
        if not self._plain:
            text = f"wrote {_many(self._count, 'record')}"
            self._console.print(
                f"{text}, the last as seq {self._last_seq}" if self._count else text
            )

    def records(self, topic: str | None, records: Iterable[StoredRecord]) -> None:
        """Records, one on each line."""
        for record in records:
            if self._plain:
                click.echo(_record_json(topic, record))
            else:
                self._console.print(_record_line(topic, record), soft_wrap=True)

    def gap(self, topic: str, gap: Gap | Tombstone) -> None:
        """Records that cannot be shown any more."""
        if self._plain:
            facts = {"topic": topic, "gap_from": gap.gap_from, "gap_to": gap.gap_to}
            self._json({"tombstone": facts | {"reason": gap.reason}})
            return
        self._note(
            f"{topic}: seqs {gap.gap_from} to {gap.gap_to} are gone ({gap.reason})", "yellow"
        )

    def event(self, event: WatchEvent, *, named: bool) -> None:
        """An event of a watch."""
        match event:
            case Records():
                self.records(event.topic if named or self._plain else None, event.records)
            case Tombstone():
                self.gap(event.topic, event)
            case TopicDeleted():
                if self._plain:
                    self._json({"topic_deleted": event.topic})
                else:
                    self._note(f"{event.topic} was deleted", "yellow")
            case CaughtUp():
                pass
        sys.stdout.flush()

    def end(self) -> None:
        """Ctrl-C: leave the terminal on a fresh line."""
        if not self._plain:
            self._console.print()

    def topics(self, rows: Iterable[TopicRow]) -> None:
        """Topics by name."""
        if self._plain:
            for row in rows:
                self._json(row)
            return
        table = Table(box=None, header_style=_DIM, pad_edge=False)
        table.add_column("topic")
        for name in ("records", "size", "first seq", "head seq", "priority"):
            table.add_column(name, justify="right")
        count = 0
        for row in rows:
            count += 1
            numbers = (f"{row.count:,}", format_bytes(row.size_bytes), str(row.earliest_seq))
            table.add_row(Text(row.topic), *numbers, str(row.head_seq), f"{row.effective_priority}")
        self._console.print(table if count else "no topics")

    def topic(self, state: TopicState) -> None:
        """One topic in full."""
        if self._plain:
            self._json(state)
            return
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style=_DIM)
        table.add_column()
        rows = {
            "topic": state.topic,
            "records": f"{state.count:,} ({format_bytes(state.size_bytes)})",
            "seqs": f"{state.earliest_seq} to {state.head_seq}",
            "last write": _time(state.last_write_ts),
            "last read": _time(state.last_read_ts),
            "effective priority": f"{state.effective_priority}",
        }
        if state.queue is not None:
            queue = state.queue
            rows["queue"] = (
                f"{queue.ready} ready, {queue.in_flight} in flight, "
                f"{queue.dead_lettered} dead-lettered"
            )
        rows |= msgspec.structs.asdict(state.config)
        for name, value in rows.items():
            table.add_row(name, Text(str(value)))
        self._console.print(table)

    def topic_deleted(self, deletion: TopicDeletion) -> None:
        """A topic that is gone, or was never there."""
        if self._plain:
            self._json(deletion)
        elif not deletion.deleted:
            self._console.print(f"there is no topic {deletion.topic}", markup=False)
        else:
            routers = ", ".join(deletion.routers_removed)
            note = f", and with it {routers}" if routers else ""
            self._console.print(f"deleted {deletion.topic}{note}", markup=False)

    def records_deleted(self, deletion: RecordDeletion) -> None:
        """Records that are gone."""
        if self._plain:
            self._json(deletion)
            return
        text = f"deleted {_many(deletion.deleted, 'record')}, {deletion.count:,} left"
        self._console.print(text)

    def _note(self, text: str, style: str) -> None:
        self._console.print(Text(text, style))

    def _json(self, value: Any) -> None:
        click.echo(msgspec.json.encode(value))


def _record_json(topic: str | None, record: StoredRecord) -> bytes:
    """A record as the protocol shows it, payloads byte for byte, on one line."""
    line = msgspec.json.encode(record) if topic is None else _with_topic(topic, record)
    return line.replace(b"\n", b" ")


def _with_topic(topic: str, record: StoredRecord) -> bytes:
    return b'{"topic":%b,%b' % (msgspec.json.encode(topic), msgspec.json.encode(record)[1:])


def _record_line(topic: str | None, record: StoredRecord) -> Text:
    parts = [(f"{record.seq:>8} ", "bold"), (f"{_time(record.ts_ms)} ", _DIM)]
    if topic is not None:
        parts.append((f"{topic} ", "cyan"))
    if record.tag is not None:
        parts.append((f"{record.tag} ", "green"))
    data = record.data_json.decode(errors="replace")
    return Text.assemble(*parts, " ".join(data.split("\n")))


def _time(ts_ms: int | None) -> str:
    if ts_ms is None:
        return "never"
    at = datetime.fromtimestamp(ts_ms / 1_000, UTC).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{ts_ms % 1_000:03}"


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
