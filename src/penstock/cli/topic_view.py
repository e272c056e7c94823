"""The output of `penstock topic`: tables for people, lines of JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from penstock.cli.failing import leave_output
from penstock.cli.output import DIM, Output, grid, many, visible, when
from penstock.kernel.units import format_bytes
from penstock.protocol.answers import (
    Gap,
    RecordDeletion,
    StoredRecord,
    TopicDeletion,
    TopicPut,
    TopicRow,
    TopicState,
    Written,
)
from penstock.protocol.events import CaughtUp, LeftOut, Records, Tombstone, TopicDeleted, WatchEvent

if TYPE_CHECKING:
    from rich.text import Text

CLASSES: Final = {
    "ephemeral": "in memory only; records are lost when the server ends or crashes",
    "memory": "written to the log without a promise; a crash may lose records",
    "disk": "survives a crash of the server from the answer on, one of the machine within "
    "disk_sync_ms (100 ms unless the server is set otherwise)",
    "fsync": "survives a crash of the machine from the answer on",
}
"""The durability classes, with what each survives and how soon."""
COUNT_S: Final = 0.1
"""How often the number of written records is shown."""


class TopicOutput(Output):
    """The output of `penstock topic`."""

    def __init__(self, as_json: bool) -> None:
        super().__init__(as_json)
        self._count = 0
        self._last_seq = 0
        self._counted_s = inf

    def written(self, written: Written) -> None:
        """A completed write."""
        if self.plain:
            self.json(written)
            return
        note = " (it had landed before)" if written.deduped else ""
        seqs = f"seq {written.first_seq}"
        if written.count > 1:
            seqs = f"seqs {written.first_seq} to {written.last_seq}"
        self.console.print(f"wrote {many(written.count, 'record')} as {seqs}{note}")

    def written_some(self, written: Written) -> None:
        """One batch of many."""
        self._count += written.count
        self._last_seq = written.last_seq
        if self.plain:
            try:
                self.json(written)
            except BrokenPipeError:
                leave_output()  # the reader closed the pipe; the input must still be written
        now_s = monotonic()
        if now_s >= self._counted_s + COUNT_S:
            self._counted_s = now_s
            click.echo(f"\r{many(self._count, 'record')} written", err=True, nl=False)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Show the number of written records, on a terminal whose input is not typed."""
        is_seen = sys.stderr.isatty() and not sys.stdin.isatty()
        if not is_seen or (self.plain and sys.stdout.isatty()):
            yield
            return
        self._counted_s = monotonic()
        try:
            yield
        finally:
            self._counted_s = inf
            click.echo("\r\x1b[K", err=True, nl=False)

    def so_far(self) -> str:
        """What was written before an error."""
        if not self._count:
            return "nothing before it was written"
        verb = "was" if self._count == 1 else "were"
        return (
            f"{many(self._count, 'record')} before it {verb} written, "
            f"the last as seq {self._last_seq}"
        )

    def written_all(self) -> None:
        """The end of many batches."""
        if not self.plain:
            text = f"wrote {many(self._count, 'record')}"
            self.console.print(f"{text}, the last as seq {self._last_seq}" if self._count else text)

    def records(self, topic: str | None, records: Iterable[StoredRecord]) -> None:
        """Records, one on each line."""
        for record in records:
            if self.plain:
                click.echo(_record_json(topic, record))
            else:
                self.console.print(_record_line(topic, record), soft_wrap=True)

    def gap(self, topic: str, gap: Gap | Tombstone, *, asked_seq: int = 0) -> None:
        """Records that are gone: reported apart from the records, which may go to a program."""
        if asked_seq > gap.head_seq:
            text = f"seq {asked_seq} is beyond the head {gap.head_seq}; beginning again"
        else:
            text = f"seqs {gap.gap_from} to {gap.gap_to} are gone ({gap.reason})"
        self.note(f"{topic}: {text}")

    def event(self, event: WatchEvent, *, named: bool, asked_seq: int = 0) -> None:
        """An event of a watch."""
        match event:
            case Records():
                self.records(event.topic if named or self.plain else None, event.records)
            case Tombstone():
                self.gap(event.topic, event, asked_seq=asked_seq)
            case TopicDeleted():
                self.note(f"{event.topic} was deleted")
            case LeftOut():
                self.note(f"{event.count} topics, {event.topic} the first: {event.message}")
            case CaughtUp():
                pass
        sys.stdout.flush()

    def topics(self, rows: Iterable[TopicRow]) -> None:
        """Topics by name."""
        if self.plain:
            for row in rows:
                self.json(row)
            return
        from rich.text import Text

        table = grid("topic")
        for name in ("in/s", "out/s", "watchers", "behind", "records", "size", "head seq"):
            table.add_column(name, justify="right")
        count = 0
        for row in rows:
            count += 1
            flow = (f"{row.in_per_s:,.3g}", f"{row.out_per_s:,.3g}")
            watchers = (f"{row.watchers:,}", f"{row.watchers_behind:,}")
            held = (f"{row.count:,}", format_bytes(row.size_bytes), str(row.head_seq))
            table.add_row(Text(row.topic), *flow, *watchers, *held)
        self.console.print(table if count else "no topics")

    def topic(self, state: TopicState) -> None:
        """One topic in full."""
        if self.plain:
            self.json(state)
            return
        rows = {
            "topic": state.topic,
            "records": f"{state.count:,} ({format_bytes(state.size_bytes)})",
            "seqs": f"{state.earliest_seq} to {state.head_seq}" if state.count else "empty",
            "last write": when(state.last_write_ts),
            "last read": when(state.last_read_ts),
            "in": f"{state.in_per_s:,.3g} records/s",
            "out": f"{state.out_per_s:,.3g} records/s",
            "watchers": f"{state.watchers:,}, of them behind {state.watchers_behind:,}",
            "push": f"{state.band}: {state.reason}" if state.band else "-",
            "effective priority": f"{state.effective_priority}",
        }
        if state.queue is not None:
            queue = state.queue
            rows["queue"] = (
                f"{queue.ready} ready, {queue.in_flight} in flight, "
                f"{queue.dead_lettered} dead-lettered"
            )
        config = msgspec.structs.asdict(state.config)
        del config["durable"]  # the class says the same, and more
        rows |= config | {"durability": _durability(state.config.durability)}
        self.facts({name: _shown(value) for name, value in rows.items()})

    def topic_put(self, put: TopicPut) -> None:
        """A topic that was created or changed."""
        if self.plain:
            self.json(put)
            return
        verb = "created" if put.created else "changed"
        facts = f"{put.config.type}, durability {put.config.durability}"
        self.console.print(f"{verb} {put.topic} ({facts})", markup=False)

    def topic_deleted(self, deletion: TopicDeletion) -> None:
        """A deleted topic."""
        if self.plain:
            self.json(deletion)
        else:
            routers = ", ".join(deletion.routers_removed)
            note = f", and with it {routers}" if routers else ""
            self.console.print(f"deleted {deletion.topic}{note}", markup=False)

    def records_deleted(self, deletion: RecordDeletion) -> None:
        """Deleted records."""
        if self.plain:
            self.json(deletion)
            return
        text = f"deleted {many(deletion.deleted, 'record')}, {deletion.count:,} left"
        self.console.print(text)


def _record_json(topic: str | None, record: StoredRecord) -> bytes:
    """A record as the protocol shows it, payloads byte for byte, on one line."""
    line = msgspec.json.encode(record).replace(b"\n", b" ")
    return line if topic is None else b'{"topic":%b,%b' % (msgspec.json.encode(topic), line[1:])


def _record_line(topic: str | None, record: StoredRecord) -> Text:
    from rich.text import Text

    parts = [(f"{record.seq:>8} ", "bold"), (f"{when(record.ts_ms)} ", DIM)]
    if topic is not None:
        parts.append((f"{visible(topic)} ", "cyan"))
    if record.tag is not None:
        parts.append((f"{visible(record.tag)} ", "green"))
    data = record.data_json.decode(errors="replace")
    return Text.assemble(*parts, visible(" ".join(data.splitlines())))


def _shown(value: Any) -> str:
    """A setting, formatted for people."""
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else visible(str(value))


def _durability(name: str) -> str:
    """A durability class, with what it survives and how soon."""
    meaning = CLASSES.get(name)
    return name if meaning is None else f"{name}: {meaning}"
