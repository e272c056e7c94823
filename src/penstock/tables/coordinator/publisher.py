"""Publishes the changes of tables to topics, each snapshot once.

A thread of the coordinator, for it alone may do so. A part of a snapshot is one write with an
idempotency key of its own; when all parts are acknowledged, the snapshot is marked in the catalog.
A successor begins after the last mark, and asks the topic which parts of the next snapshot it holds
already: so a publisher that was killed in between repeats nothing, however long it was away. What a
snapshot changed is read from a file that stays until it is marked, so the parts are the same again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.lake.database import CatalogAway
from penstock.lake.feed import FeedFile, read_feed, write_feed
from penstock.lake.model import TableInfo, relative_to, resolve
from penstock.protocol.errors import NoContents, PublishRefused, TableNotFound
from penstock.tables import rows
from penstock.tables.changes import (
    Lost,
    ResetNeeded,
    TableChange,
    TableStep,
    Unchanged,
    current_table,
    frontier_at,
    next_step,
    read_step,
)
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.definitions import stored_relations
from penstock.tables.engine import TopicWriter
from penstock.tables.pages import read_page
from penstock.tables.publishing import (
    Publication,
    PublishedParts,
    all_rows,
    no_rows,
    table_key,
)
from penstock.tables.store import TableStore
from penstock.tables.worker.outcomes import detail_of

CONTENTS_ROWS_MAX: Final = 100_000
"""Contents with more rows are not published whole: the topic says where to read them."""
_LOOK_S: Final = 1.0
_RETRIES: Final = Backoff(base_ms=250, cap_ms=10_000, jitter=0.0, window_ms=math.inf)
_KEEP_SEEN_MS: Final = 3_600_000
_WHOLE: Final = -1
"""The beginning of a feed that leads from nothing to the contents."""

_LOG: Final = logging.getLogger("penstock.tables")


class NotOurs(Exception):
    """Another coordinator has the lease, or the publication was changed meanwhile."""


class Publisher:
    """One thread, while there are tables to publish. `follow`, `wake` and `close` from another."""

    def __init__(
        self,
        store: TableStore,
        make_writer: Callable[[], TopicWriter | None],
        identity: str,
        clock: Clock,
    ) -> None:
        self._store, self._lake = store, store.lake
        self._make_writer, self._identity, self._clock = make_writer, identity, clock
        self._writer: TopicWriter | None = None
        self._woken = threading.Condition()
        self._thread: threading.Thread | None = None
        self._follows = self._has_news = self._ended = False
        self._sure: set[str] = set()
        self._seen: dict[str, int] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        self._keys: dict[str, tuple[int, tuple[int, ...] | None]] = {}

    def follow(self, published: bool) -> None:
        """Whether any table is published now."""
        with self._woken:
            self._follows = self._has_news = published
            self._woken.notify()
        if published and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-publish", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Tables may have changed."""
        if self._follows:
            with self._woken:
                self._has_news = True
                self._woken.notify()

    def close(self) -> None:
        """Stop after the write in progress."""
        with self._woken:
            self._ended = True
            self._woken.notify()
        if self._thread is not None:
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        while not self._ended:
            with self._woken:
                self._woken.wait_for(lambda: self._ended or self._has_news, _LOOK_S)
                self._has_news = False
                look = self._follows and not self._ended
            if look:
                self.publish_all()
        if self._writer is not None:
            self._writer.close()

    # one look ------------------------------------------------------------------------------------

    def publish_all(self) -> None:
        """Publish everything that is due; troubles are noted, one by one."""
        try:
            found = publications(self._store)
        except CatalogAway as error:  # reported by the coordinator
            _LOG.debug("publishing waits for the catalog: %s", error)
            return
        for publication in found:
            if not self._ended and self._may_try(publication.table):
                self._try(publication)

    def _may_try(self, table: str) -> bool:
        _, until_s = self._failed.get(table, (0, 0.0))
        return self._clock.monotonic_ms() / 1_000 >= until_s

    def _try(self, publication: Publication) -> None:
        table = publication.table
        try:
            while not self._ended and (moved := self._advance(publication)) is not None:
                publication = moved
                self._failed.pop(table, None)
        except (NotOurs, CatalogAway) as error:
            self._sure.discard(table)
            _LOG.debug("%s is not published now: %s", table, error)
        except (NoContents, TableNotFound):
            return  # it was never filled, or is just being dropped
        except Exception as error:
            self._sure.discard(table)
            if not isinstance(error, PenstockError):
                _LOG.exception("the changes of %s could not be published", table)
            self._note_trouble(publication, error)

    def _note_trouble(self, publication: Publication, error: Exception) -> None:
        count, _ = self._failed.get(publication.table, (0, 0.0))
        until_s = (self._clock.monotonic_ms() + _RETRIES.nominal_ms(count + 1)) / 1_000
        self._failed[publication.table] = count + 1, until_s
        text = detail_of(error)
        if text != publication.trouble:
            place = (publication.table, publication.topic, publication.url)
            self._store.run(rows.SET_TROUBLE, text, *place)

    def _advance(self, publication: Publication) -> Publication | None:
        """Publish one snapshot; None if there is nothing more."""
        parts = self._next(publication)
        if parts is None:
            if publication.trouble is not None:
                place = (publication.table, publication.topic, publication.url)
                self._store.run(rows.SET_TROUBLE, None, *place)
            return None
        at = TopicPosition(publication.epoch, publication.seq)
        if parts.count:
            head = self._topics().head(publication.url, publication.topic).position
            if head.epoch != publication.epoch:
                # The first time, or another topic of that name. Its end is noted before anything is
                # written, for a successor to look from there.
                self._sure.discard(publication.table)
                return self._store_mark(publication, None, -1, head)
            at = self._write(publication, parts)
        return self._mark(publication, parts, at)

    def _topics(self) -> TopicWriter:
        if self._writer is None:
            self._writer = self._make_writer()
        if self._writer is None:
            raise PublishRefused("this warehouse was opened without topics: pass `topics`")
        return self._writer

    # what to write -------------------------------------------------------------------------------

    def _next(self, publication: Publication) -> PublishedParts | None:
        table, latest = current_table(self._lake, publication.table, defined=True)
        if publication.snapshot < 0 or publication.uuid is None:
            return self._whole(publication, table, latest, None)
        after = max(publication.snapshot, self._seen.get(publication.table, -1))
        found = next_step(self._lake, publication.table, publication.uuid, after)
        if isinstance(found, Unchanged):
            self._keep_seen(publication, found.snapshot)
            return None
        if isinstance(found, ResetNeeded):
            return self._whole(publication, table, latest, found)
        change = read_step(self._lake, found)
        if isinstance(change, ResetNeeded):
            return self._whole(publication, table, latest, change)
        if found.feed is None and change.rows.num_rows:
            change = self._listed(found, change, publication.snapshot)
        return self._parts(publication.table, change)

    def _parts(
        self,
        name: str,
        change: TableChange,
        reset: ResetNeeded | None = None,
        *,
        whole: bool = True,
    ) -> PublishedParts:
        frontier = frontier_at(self._lake, name, change.snapshot)
        return PublishedParts(
            name, change, key=self._key(name), frontier=frontier, reset=reset, is_complete=whole
        )

    def _key(self, name: str) -> tuple[int, ...] | None:
        found = self._store.definitions()
        version, key = self._keys.get(name, (-1, None))
        if version != found.version:
            key = table_key(found, stored_relations(self._lake, found), name)
            self._keys[name] = found.version, key
        return key

    def _keep_seen(self, publication: Publication, snapshot: int) -> None:
        """Remember that nothing changed so far: the snapshots in between may expire."""
        self._seen[publication.table] = snapshot
        now_ms = self._clock.now_ms()
        is_old = now_ms - (publication.published_ms or 0) > _KEEP_SEEN_MS
        if publication.uuid is not None and is_old and snapshot > publication.snapshot:
            at = TopicPosition(publication.epoch, publication.seq)
            self._store_mark(publication, publication.uuid, snapshot, at)

    def _listed(self, step: TableStep, change: TableChange, after: int) -> TableChange:
        """A change that no feed has, as it is read from a feed that is listed for it."""
        self._list(step.table, after, step.snapshot, change)
        file = self._file(step.table, after, step.snapshot)
        if file is None:
            raise NotOurs(f"the feed of {step.table.name} was changed meanwhile")
        return self._read(step.table, file, change)

    def _whole(
        self, publication: Publication, table: TableInfo, latest: int, reset: ResetNeeded | None
    ) -> PublishedParts:
        """The contents from nothing, or where they are if they are too many."""
        listed = self._lake.query(rows.LISTED_FEED, (table.id, _WHOLE))
        snapshot = int(listed[0][0]) if listed else latest
        none = table.arrow_schema.empty_table()
        change = TableChange(table, _WHOLE, snapshot, none, np.zeros(0, np.int64))
        if not listed:
            version = self._lake.table_at(publication.table, snapshot)
            page = read_page(self._lake, version, limit=CONTENTS_ROWS_MAX)
            if page.next_offset is not None:
                told = _elsewhere(reset, page.rows_total)
                return self._parts(publication.table, no_rows(change), told, whole=False)
            self._list(table, _WHOLE, snapshot, all_rows(change, page.rows))
        file = self._file(table, _WHOLE, snapshot)
        if file is None:
            raise NotOurs(f"the contents of {table.name} were listed again")
        return self._parts(publication.table, self._read(table, file, change), reset)

    def _list(self, table: TableInfo, after: int, until: int, change: TableChange) -> None:
        weights = pa.array(change.weights, pa.int64())
        made = write_feed(self._lake.storage, table, change.rows, weights, uuid4().hex)
        path, is_relative = relative_to(self._lake.data_path, made.path)
        values = (table.id, after, until, path, int(is_relative), made.rows, made.size_bytes)
        self._store.run(rows.LIST_FEED, *values)

    def _file(self, table: TableInfo, after: int, until: int) -> FeedFile | None:
        for found, path, is_relative, count, size in self._lake.query(
            rows.LISTED_FEED, (table.id, after)
        ):
            if found == until:
                whole = resolve(self._lake.data_path, path, bool(is_relative))
                return FeedFile(whole, count, size)
        return None

    def _read(self, table: TableInfo, file: FeedFile, change: TableChange) -> TableChange:
        found, weights = read_feed(self._lake.storage, table, file)
        return change._replace(rows=found, weights=weights.to_numpy().astype(np.int64))

    # writing -------------------------------------------------------------------------------------

    def _write(self, publication: Publication, parts: PublishedParts) -> TopicPosition:
        """Write the parts that the topic does not hold yet; returns where it ends then."""
        url, topic = publication.url, publication.topic
        at = TopicPosition(publication.epoch, publication.seq)
        begin = 0
        if parts.count and publication.table not in self._sure:
            at, begin = self._topics().held(url, topic, at, parts.uuid, parts.snapshot)
        self._sure.discard(publication.table)
        for number in range(begin, parts.count):
            self._check_lease()
            key = parts.idempotency_key(number)
            seq = self._topics().write(url, topic, parts.part(number), key)
            at = TopicPosition(at.epoch, seq)
        return at

    def _check_lease(self) -> None:
        found = self._lake.query(rows.COORDINATOR_IS)
        if self._ended or not found or found[0][0] != self._identity:
            raise NotOurs("another coordinator publishes")

    def _mark(
        self, publication: Publication, parts: PublishedParts, at: TopicPosition
    ) -> Publication:
        """Note that a snapshot is published whole."""
        made = self._store_mark(publication, parts.uuid, parts.snapshot, at)
        self._sure.add(publication.table)
        self._seen.pop(publication.table, None)
        return made

    def _store_mark(
        self, publication: Publication, uuid: str | None, snapshot: int, at: TopicPosition
    ) -> Publication:
        now_ms = self._clock.now_ms()
        place = (publication.table, publication.topic, publication.url, publication.snapshot)
        values = (uuid, snapshot, at.epoch, at.seq, now_ms, *place)

        listed = self._lake.query(rows.TABLE_NUMBERS, (uuid,)) if uuid is not None else []

        def work(cursor: object) -> int:
            changed = self._store.execute(cursor, rows.MARK_PUBLISHED, *values)
            for (number,) in listed if changed else ():
                self._store.execute(cursor, rows.UNLIST_FEED, number, _WHOLE)
            return changed

        if not self._lake.retrying(work):
            raise NotOurs(f"the publication of {publication.table} was changed meanwhile")
        return publication._replace(
            uuid=uuid, snapshot=snapshot, epoch=at.epoch, seq=at.seq, published_ms=now_ms,
            trouble=None,
        )  # fmt: skip


def publications(store: TableStore) -> list[Publication]:
    """All tables that are published."""
    return [Publication(*row) for row in store.lake.query(rows.SELECT_PUBLICATIONS)]


def _elsewhere(reset: ResetNeeded | None, count: int) -> ResetNeeded:
    """A reset that says that the contents are to be read elsewhere."""
    text = f"{count:,} rows are too many to be published whole: read them at this snapshot"
    if reset is None:
        return ResetNeeded(Lost.TOO_LARGE, text)
    return ResetNeeded(reset.reason, f"{reset.text}; {text}")
