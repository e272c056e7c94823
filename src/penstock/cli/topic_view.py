"""What `penstock topic` prints: tables for people, lines of JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.failing import leave_output
from penstock.cli.visible import visible
from penstock.client.results import (
    Gap,
    RecordDeletion,
    StoredRecord,
    TopicDeletion,
    TopicPut,
    TopicRow,
    TopicState,
    Written,
)
from penstock.client.watching import (
    CaughtUp,
    LeftOut,
    Records,
    Tombstone,
    TopicDeleted,
    WatchEvent,
)
from penstock.kernel.units import format_bytes

_DIM: Final = "bright_black"
_CLASSES: Final = {
    "ephemeral": "in memory only; records are lost when the server ends or crashes",
    "memory": "written to the log without a promise; a crash may lose records",
    "disk": "survives a crash of the server from the answer on, one of the machine within "
    "disk_sync_ms (100 ms unless the server is set otherwise)",
    "fsync": "survives a crash of the machine from the answer on",
}
"""What each durability class survives, and how soon."""
COUNT_S: Final = 0.1
"""How often it is shown how many records are written."""


class Output:
    """Prints answers; plain JSON unless standard output is a terminal and nobody asked for it."""

    def __init__(self, as_json: bool) -> None:
        self._console = Console(highlight=False)
        self._notes = Console(highlight=False, stderr=True)
        self._plain = as_json or not self._console.is_terminal
        self._count = 0
        self._last_seq = 0
        self._counted_s = inf

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
            try:
                self._json(written)
            except BrokenPipeError:
                leave_output()  # who reads this has had enough; who wrote the input has not
        now_s = monotonic()
        if now_s >= self._counted_s + COUNT_S:
            self._counted_s = now_s
            click.echo(f"\r{_many(self._count, 'record')} written", err=True, nl=False)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Show how many are written, where somebody looks who does not type them."""
        is_seen = sys.stderr.isatty() and not sys.stdin.isatty()
        if not is_seen or (self._plain and sys.stdout.isatty()):
            yield
            return
        self._counted_s = monotonic()
        try:
            yield
        finally:
            self._counted_s = inf
            click.echo("\r\x1b[K", err=True, nl=False)

    def so_far(self) -> str:
        """What has landed before something went wrong."""
        if not self._count:
            return "nothing before it was written"
        verb = "was" if self._count == 1 else "were"
        return (
            f"{_many(self._count, 'record')} before it {verb} written, "
            f"the last as seq {self._last_seq}"
        )

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

    def gap(self, topic: str, gap: Gap | Tombstone, *, asked_seq: int = 0) -> None:
        """Records that cannot be shown any more: beside the records, which may go to a program."""
        if asked_seq > gap.head_seq:
            text = f"seq {asked_seq} is beyond the head {gap.head_seq}; beginning again"
        else:
            text = f"seqs {gap.gap_from} to {gap.gap_to} are gone ({gap.reason})"
        self._note(f"{topic}: {text}")

    def event(self, event: WatchEvent, *, named: bool, asked_seq: int = 0) -> None:
        """An event of a watch."""
        match event:
            case Records():
                self.records(event.topic if named or self._plain else None, event.records)
            case Tombstone():
                self.gap(event.topic, event, asked_seq=asked_seq)
            case TopicDeleted():
                self._note(f"{event.topic} was deleted")
            case LeftOut():
                self._note(f"{event.count} topics, {event.topic} the first: {event.message}")
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
            "seqs": f"{state.earliest_seq} to {state.head_seq}" if state.count else "empty",
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
        config = msgspec.structs.asdict(state.config)
        del config["durable"]  # the class says it, and more
        rows |= config | {"durability": _durability(state.config.durability)}
        for name, value in rows.items():
            table.add_row(name, Text(_shown(value)))
        self._console.print(table)

    def topic_put(self, put: TopicPut) -> None:
        """A topic that was made, or was there and is changed."""
        if self._plain:
            self._json(put)
            return
        verb = "created" if put.created else "changed"
        facts = f"{put.config.type}, durability {put.config.durability}"
        self._console.print(f"{verb} {put.topic} ({facts})", markup=False)

    def topic_deleted(self, deletion: TopicDeletion) -> None:
        """A topic that is gone."""
        if self._plain:
            self._json(deletion)
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

    def _note(self, text: str) -> None:
        sys.stdout.flush()
        self._notes.print(Text(text, "yellow"), soft_wrap=True)

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
        parts.append((f"{visible(topic)} ", "cyan"))
    if record.tag is not None:
        parts.append((f"{visible(record.tag)} ", "green"))
    data = record.data_json.decode(errors="replace")
    return Text.assemble(*parts, visible(" ".join(data.splitlines())))


def _shown(value: Any) -> str:
    """A setting, as people say it."""
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else visible(str(value))


def _durability(name: str) -> str:
    """A durability class, with what it survives and how soon."""
    meaning = _CLASSES.get(name)
    return name if meaning is None else f"{name}: {meaning}"


def _time(ts_ms: int | None) -> str:
    if ts_ms is None:
        return "never"
    at = datetime.fromtimestamp(ts_ms / 1_000, UTC).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{ts_ms % 1_000:03}"


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
