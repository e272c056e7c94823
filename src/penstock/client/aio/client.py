"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

from penstock.client import calls, cluster_calls, space_calls, view_calls
from penstock.client.aio.runner import AsyncRunner
from penstock.client.aio.tables import AsyncLake, AsyncTables
from penstock.client.aio.watch import AsyncWatch
from penstock.client.aio.work import AsyncWork, AsyncWorkFlow
from penstock.client.aio.writer import AsyncWriter
from penstock.client.batching import BatchLimits
from penstock.client.calls import AUTO_KEY, Jobs, arrow_table
from penstock.client.retry import OnTrouble
from penstock.client.settings import DEFAULT_URL, ClientSettings
from penstock.client.transports.aio import AsyncTransport
from penstock.client.watching import Position, WatchCore, WatchOptions, starts_of
from penstock.kernel.units import MIB
from penstock.protocol import answers, cluster_answers, lake_answers, part_answers
from penstock.protocol.commits import Commit
from penstock.protocol.history import History
from penstock.protocol.queues import Discarded, QueueState, Redriven
from penstock.protocol.requests import RouterBody
from penstock.protocol.server_events import EventPage
from penstock.protocol.watchers import TopicPartition, TopicWatchers

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncClient:
    """A Penstock server, from asyncio. Create one and keep it: it reuses its connections.

    Every call has a deadline, `timeout_s` of the settings, and is retried where that is safe.
    `on_trouble` gets the reason when a call or a stream has to be retried, once for each outage,
    and None when the outage is over. A client can be pickled; the copy makes its own connections.

    It belongs to the event loop that uses it.
    """

    def __init__(
        self,
        url: str | ClientSettings = DEFAULT_URL,
        *,
        api_key: str | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        settings = url if isinstance(url, ClientSettings) else ClientSettings(url, api_key)
        self._transport = AsyncTransport(settings)
        self._runner = AsyncRunner(settings, self._transport, Random(), on_trouble)

    @property
    def settings(self) -> ClientSettings:
        """The settings the client was created with."""
        return self._runner.settings

    def within(self, timeout_s: float) -> Self:
        """The same client, with the same connections and a different deadline for each call.

        The deadline also holds where the server is asked to wait longer (`wait_ms`).
        """
        other = object.__new__(type(self))
        other._transport = self._transport
        other._runner = self._runner.within(timeout_s)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.url!r})"

    async def aclose(self) -> None:
        """Close every connection; calls and streams in progress fail."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def tables(self) -> AsyncTables:
        """Stream tables, if the server has a warehouse."""
        return AsyncTables(self._runner)

    @property
    def lake(self) -> AsyncLake:
        """What the lake holds, if the server has a warehouse."""
        return AsyncLake(self._runner)

    # Topics

    async def put_topic(self, topic: str, **options: Any) -> answers.TopicPut:
        """Create a topic, or change the named options of an existing one."""
        return await self._runner.run(calls.put_topic(topic, options))

    async def get_topic(self, topic: str, *, touch: bool = True) -> answers.TopicState:
        """A topic's contents and configuration. `touch` counts this as a read."""
        return await self._runner.run(calls.get_topic(topic, touch=touch))

    def list_topics(
        self,
        prefix: str = "",
        *,
        page_size: int = 1_000,
        sort: str | None = None,
        type: str | None = None,  # noqa: A002  # the protocol's word
    ) -> AsyncIterator[answers.TopicRow]:
        """The topics whose names begin with a prefix, by name, page after page.

        By `sort` "rate", "behind" or "bytes": the first `page_size` of that order, greatest first.
        """
        same: dict[str, Any] = {"page_size": page_size, "sort": sort, "type": type}
        first = calls.list_topics(prefix, **same)
        following = partial(calls.after_topics, prefix=prefix, **same)
        return self._runner.rows(first, following, lambda page: page.topics)

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> answers.TopicDeletion:
        """Delete a topic and its routers; with `if_empty` only if it holds no records."""
        return await self._runner.run(calls.delete_topic(topic, if_empty=if_empty))

    # Records

    async def write(
        self,
        topic: str,
        records: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = AUTO_KEY,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
        disable_backpressure: bool | None = None,
        return_seqs: bool = True,
    ) -> answers.Written:
        """Append records, all or none: plain objects, `Record`s, or JSON text as bytes.

        The write is sent again when its answer is lost; its idempotency key makes that safe.
        Without a key (None) it is not safe, and a lost answer ends with `OutcomeUnknown`.
        """
        call = calls.write(
            topic,
            records,
            idempotency_key=_key(idempotency_key),
            return_seqs=return_seqs,
            node=node,
            create=create,
            config=config,
            disable_backpressure=disable_backpressure,
        )
        return await self._runner.run(call)

    async def write_many(
        self,
        writes: Mapping[str, Iterable[object]],
        *,
        node: str | None = None,
        idempotency_key: str | None = AUTO_KEY,
        create: bool | None = None,
    ) -> list[answers.TopicWritten]:
        """Append to several topics of one partition in one commit: all or none."""
        key = _key(idempotency_key)
        call = calls.write_many(writes, idempotency_key=key, node=node, create=create)
        return await self._runner.run(call)

    async def diff(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        from_ts: int | None = None,
        limit: int | None = None,
        node: str | list[str] | None = None,
        tag: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        wait_ms: int = 0,
        batch_bytes_max: int | None = None,
        epoch: int | None = None,
    ) -> answers.Diff:
        """One page of the records after a seq, or from a time on (`from_ts`), whichever is later.

        `wait_ms` waits for records if there are none. `node` excludes the records of a node, `tag`
        selects matching ones. Pass `epoch` back to detect that the topic was recreated.
        """
        call = calls.diff(
            topic,
            from_seq=from_seq,
            from_ts=from_ts,
            limit=limit,
            node=node,
            tag=tag,
            include_tags=include_tags,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=batch_bytes_max,
            epoch=epoch,
        )
        return await self._runner.run(call)

    async def diff_arrow(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        from_ts: int | None = None,
        limit: int | None = None,
        node: str | list[str] | None = None,
        tag: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        wait_ms: int = 0,
        batch_bytes_max: int | None = None,
        epoch: int | None = None,
    ) -> pa.Table:
        """Like `diff`, with the records as an Arrow table.

        The other fields of a page, such as `next_from_seq`, are the metadata of its schema.
        """
        call = calls.diff_arrow(
            topic,
            from_seq=from_seq,
            from_ts=from_ts,
            limit=limit,
            node=node,
            tag=tag,
            include_tags=include_tags,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=batch_bytes_max,
            epoch=epoch,
        )
        return arrow_table(await self._runner.run(call))

    def read(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        from_ts: int | None = None,
        page_size: int = 1_000,
        node: str | list[str] | None = None,
        tag: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        epoch: int | None = None,
    ) -> AsyncIterator[answers.Diff]:
        """The pages of a topic until it is caught up; continue later from `next_from_seq`."""
        same: dict[str, Any] = {
            "limit": page_size,
            "node": node,
            "tag": tag,
            "include_tags": include_tags,
            "include_meta": include_meta,
        }
        first = calls.diff(topic, from_seq=from_seq, from_ts=from_ts, epoch=epoch, **same)
        return self._runner.pages(first, partial(calls.after_diff, **same))

    async def delete_records(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        match: str | Sequence[str] | None = None,
    ) -> answers.RecordDeletion:
        """Delete records before a seq, with a matching tag, or both."""
        call = calls.delete_records(topic, before_seq=before_seq, match=match)
        return await self._runner.run(call)

    def writer(
        self,
        topic: str,
        *,
        linger_ms: float = 5,
        batch_max: int = 1_000,
        batch_bytes_max: int = 4 * MIB,
        waiting_bytes_max: int = 32 * MIB,
        node: str | None = None,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
        disable_backpressure: bool | None = None,
        on_written: Callable[[answers.Written], None] | None = None,
    ) -> AsyncWriter:
        """A writer that batches many sends into few requests, in order, with bounded memory.

        `on_written` is called with each acknowledged batch. If it raises, the writer ends with that
        error; the batch counts as written.
        """
        return AsyncWriter(
            self._runner,
            topic,
            limits=BatchLimits(batch_max, batch_bytes_max, waiting_bytes_max),
            linger_ms=linger_ms,
            fields={
                "node": node,
                "create": create,
                "config": calls.known_options(config),
                "disable_backpressure": disable_backpressure,
            },
            on_written=on_written,
        )

    # Spaces

    def list_spaces(
        self, prefix: str = "", *, page_size: int = 1_000
    ) -> AsyncIterator[answers.SpaceRow]:
        """The spaces whose names begin with a prefix, by name, page after page."""
        first = space_calls.list_spaces(prefix, page_size=page_size)
        following = partial(space_calls.after_spaces, prefix=prefix, page_size=page_size)
        return self._runner.rows(first, following, lambda page: page.spaces)

    async def commit(self, space: str, commit: Commit) -> answers.CommitAccepted:
        """Change entities of a space atomically.

        A commit whose answer is lost is sent again: the server recognises it by its session and
        number.
        """
        return await self._runner.run(space_calls.commit(space, commit))

    async def get_entity(
        self, space: str, entity: str, *, at_seq: int | None = None
    ) -> answers.EntityState:
        """An entity, now or as of a seq of its space; `EntityNotFound` if it does not exist."""
        return await self._runner.run(space_calls.get_entity(space, entity, at_seq=at_seq))

    def list_entities(
        self, space: str, prefix: str = "", *, at_seq: int | None = None, page_size: int = 1_000
    ) -> AsyncIterator[answers.EntityState]:
        """The entities of a space by id, page after page, all as of one seq."""
        first = space_calls.list_entities(space, prefix, at_seq=at_seq, limit=page_size)
        following = partial(space_calls.after_entities, space=space, prefix=prefix, limit=page_size)
        return self._runner.rows(first, following, lambda page: page.states())

    def entity_history(
        self, space: str, entity: str, *, after_seq: int = 0, page_size: int = 1_000
    ) -> AsyncIterator[answers.EntityCommit]:
        """The commits that wrote an entity, oldest first, as far as their records are retained."""
        first = space_calls.entity_history(space, entity, after_seq=after_seq, limit=page_size)
        following = partial(space_calls.after_history, space=space, entity=entity, limit=page_size)
        return self._runner.rows(first, following, lambda page: page.commits)

    # Routers

    async def put_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        filter: str | Sequence[str] | None = None,  # noqa: A002  # the protocol's word
        allow_cycle: bool = False,
        guarantee: str = "at_least_once",
    ) -> answers.RouterPut:
        """Forward the records of one topic to another, from now on."""
        body = RouterBody(
            source=source,
            dest=dest,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            filter=filter,
            allow_cycle=allow_cycle,
            guarantee=cast(Any, guarantee),  # another value is the server's to refuse
        )
        return await self._runner.run(calls.put_router(router, body))

    async def get_router(self, router: str) -> answers.RouterState:
        """A router and how many records it has forwarded."""
        return await self._runner.run(calls.get_router(router))

    def list_routers(
        self,
        prefix: str = "",
        *,
        source: str | None = None,
        dest: str | None = None,
        page_size: int = 1_000,
    ) -> AsyncIterator[answers.RouterRow]:
        """The routers whose names begin with a prefix, by name, page after page."""
        same: dict[str, Any] = {"source": source, "dest": dest, "page_size": page_size}
        first = calls.list_routers(prefix, **same)
        following = partial(calls.after_routers, prefix=prefix, **same)
        return self._runner.rows(first, following, lambda page: page.routers)

    async def delete_router(self, router: str) -> answers.RouterDeletion:
        """Delete a router; forwarded records stay."""
        return await self._runner.run(calls.delete_router(router))

    # Queues

    async def claim(
        self, topic: str, node: str, *, count: int = 1, lease_ms: int | None = None
    ) -> answers.Claims:
        """Lease up to `count` jobs of a queue for this node.

        Not sent again if its answer is lost: the jobs return to the queue when their lease ends.
        """
        return await self._runner.run(calls.claim(topic, node, count=count, lease_ms=lease_ms))

    async def ack(self, topic: str, node: str, jobs: Jobs) -> answers.Acked:
        """Mark jobs, or seqs, as done. After a lost answer they are in `skipped`."""
        return await self._runner.run(calls.ack(topic, node, jobs))

    async def get_cluster(self) -> cluster_answers.ClusterState:
        """The cluster as this server sees it: members, links, partitions and their leaders."""
        return await self._runner.run(cluster_calls.cluster())

    async def check_cluster(self) -> cluster_answers.ClusterChecks:
        """Clocks, versions, logs and disks of all nodes, and what is wrong with them."""
        return await self._runner.run(cluster_calls.checks())

    async def add_member(self, name: str, address: str) -> cluster_answers.MemberFile:
        """Take a new member into the cluster; `file` is the content of its `cluster.json`."""
        return await self._runner.run(cluster_calls.add_member(name, address))

    async def replace_member(
        self, name: str, address: str = "", *, force: bool = False
    ) -> cluster_answers.MemberFile:
        """Take a member out whose directory is lost, and a new one in by its name."""
        call = cluster_calls.replace_member(name, address, force=force)
        return await self._runner.run(call)

    async def remove_member(
        self, name: str, *, force: bool = False
    ) -> cluster_answers.MemberRemoval:
        """Take a member out of the cluster."""
        return await self._runner.run(cluster_calls.remove_member(name, force=force))

    async def transfer_leadership(
        self, partition: int, member: str
    ) -> cluster_answers.LeadershipTransfer:
        """Ask for the leadership of a partition to be handed over to a member."""
        return await self._runner.run(cluster_calls.transfer_leadership(partition, member))

    async def verify_partition(self, partition: int) -> cluster_answers.PartitionComparison:
        """Compare the state of a partition on all members, at the same index of its log."""
        return await self._runner.run(cluster_calls.verify_partition(partition))

    async def get_queue(self, topic: str) -> QueueState:
        """A queue: its jobs by state, its workers with their leases, its dead letters."""
        return await self._runner.run(view_calls.queue(topic))

    async def nack(
        self, topic: str, node: str, jobs: Jobs, *, delay_ms: int = 0, reason: str = ""
    ) -> answers.Nacked:
        """Return jobs to the queue, to be delivered again after a delay.

        `reason` is why they were not finished; a dead letter shows the last one.
        """
        call = calls.nack(topic, node, jobs, delay_ms=delay_ms, reason=reason)
        return await self._runner.run(call)

    async def redrive(
        self,
        queue: str,
        *,
        seqs: Sequence[int] | None = None,
        reason: str | None = None,
        everything: bool = False,
        to: str | None = None,
    ) -> Redriven:
        """Make dead letters of a queue jobs again, all in one commit.

        Choose them by their seqs in the dead letter topic, by reason ("" for those without one), or
        take all. They go back into the queue, or into the topic `to`. After a lost answer they are
        in `skipped`.
        """
        call = calls.redrive(queue, seqs=seqs, reason=reason, everything=everything, to=to)
        return await self._runner.run(call)

    async def discard_letters(
        self,
        queue: str,
        *,
        seqs: Sequence[int] | None = None,
        reason: str | None = None,
        everything: bool = False,
    ) -> Discarded:
        """Delete dead letters of a queue, chosen as in `redrive`."""
        call = calls.discard_letters(queue, seqs=seqs, reason=reason, everything=everything)
        return await self._runner.run(call)

    async def extend(self, topic: str, node: str, jobs: Jobs, *, lease_ms: int) -> answers.Extended:
        """Extend the leases of jobs to end this long from now."""
        return await self._runner.run(calls.extend(topic, node, jobs, lease_ms=lease_ms))

    def work(
        self,
        topic: str,
        node: str,
        *,
        count: int = 1,
        lease_ms: int | None = None,
        extend_leases: bool = True,
    ) -> AsyncWork:
        """The jobs of a queue as they become ready, with at most `count` unsettled at a time.

        Ack or nack each job. Until then its lease is extended in time, unless `extend_leases` is
        False. A lost connection is reopened; unsettled jobs of the lost one return to the queue, so
        a job may be delivered twice.
        """
        flow = AsyncWorkFlow(
            self._runner, topic, node, count=count, lease_ms=lease_ms, extends=extend_leases
        )
        return AsyncWork(flow, self._runner)

    # Watch

    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, int | Position] = (),
        *,
        tail: bool = False,
        prefixes: Iterable[str] = (),
        tag: str | Sequence[str] | None = None,
        node: str | list[str] | None = None,
        limit: int = 256,
        batch_bytes_max: int = 262_144,
        heartbeat_ms: int = 15_000,
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        lenient: bool = False,
        name: str | None = None,
    ) -> AsyncWatch:
        """The records of topics as they are written, each exactly once, across lost connections.

        Start after seqs (`{"topic": 12}`), at the beginning (names), or with `tail` after the
        existing records. Topics that begin with one of `prefixes` join whenever they are created.
        `lenient` skips topics that do not exist. `name` is what the watch is called where the
        readers of a topic are listed.
        """
        options = WatchOptions(
            node=node,
            limit=limit,
            batch_bytes_max=batch_bytes_max,
            heartbeat_ms=heartbeat_ms,
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
            lenient=lenient,
            tag=tag,
            prefixes=tuple(prefixes),
            name=name,
        )
        starts = starts_of(topics, tail=tail)
        core = WatchCore(starts, options, self.settings.reconnect, self._runner.random)
        return AsyncWatch(core, self._runner)

    # Server

    async def health(self) -> answers.Health:
        """Whether the server answers. Not retried: a failure is the answer."""
        return await self._runner.run(calls.health())

    async def ready(self) -> answers.Ready:
        """Whether the server takes requests. Not retried: `NotReady` is an answer."""
        return await self._runner.run(calls.ready())

    async def metrics(self) -> dict[str, Any]:
        """The server's counters."""
        return await self._runner.run(calls.metrics())

    async def scheduler(self, topic: str | None = None) -> dict[str, Any]:
        """What the server's scheduler is about to do, and why; for one topic if it is named."""
        return await self._runner.run(calls.scheduler(topic))

    async def verdict(self) -> part_answers.Verdict:
        """How things stand: one sentence, its level, and the facts behind it."""
        return await self._runner.run(calls.verdict())

    async def waiting(self) -> part_answers.WaitingList:
        """Everything that waits, the longest first: why, and what would help."""
        return await self._runner.run(calls.waiting())

    async def history(
        self, series: Iterable[str] = (), *, step: str = "1s", since_ms: int | None = None
    ) -> History:
        """The server's own numbers over time: by the second ("1s") or by the minute ("1m").

        Without names, all series; `since_ms` leaves out what the caller has already.
        """
        return await self._runner.run(view_calls.history(series, step=step, since_ms=since_ms))

    async def history_arrow(
        self, series: Iterable[str] = (), *, step: str = "1s", since_ms: int | None = None
    ) -> pa.Table:
        """Like `history`, as an Arrow table."""
        call = view_calls.history_arrow(series, step=step, since_ms=since_ms)
        return arrow_table(await self._runner.run(call))

    async def parts(self) -> part_answers.PartList:
        """Which parts run where, as they last reported themselves."""
        return await self._runner.run(calls.parts())

    async def pipeline(self, part: str | None = None) -> part_answers.PipelineState:
        """The ingest pipeline: stages, bottleneck, memory, and the planner's decisions."""
        return await self._runner.run(calls.pipeline(part))

    async def pipeline_history(
        self, part: str | None = None, *, since: int | None = None
    ) -> part_answers.PipelineHistory:
        """The pipeline second by second, of 15 minutes at most, after a time in ms since 1970."""
        return await self._runner.run(calls.pipeline_history(part, since))

    async def hold_stage(self, stage: str, part: str | None = None) -> part_answers.StageSwitched:
        """Hold a stage of the ingest pipeline; the stages before it fill up and wait."""
        return await self._runner.run(calls.switch_stage(stage, "hold", part))

    async def release_stage(
        self, stage: str, part: str | None = None
    ) -> part_answers.StageSwitched:
        """Let a stage of the ingest pipeline go on."""
        return await self._runner.run(calls.switch_stage(stage, "go", part))

    async def graph(self) -> lake_answers.Graph:
        """What reads what: topics, spaces, lake tables and stream tables, with states and units."""
        return await self._runner.run(calls.graph())

    async def events(
        self, *, after_id: int = 0, limit: int | None = None, kind: str | None = None
    ) -> EventPage:
        """The last things that happened to the server, newest first.

        They are also the records of topic `penstock.events`, which can be watched.
        """
        call = view_calls.events(after_id=after_id, limit=limit, kind=kind)
        return await self._runner.run(call)

    async def topic_watchers(self, topic: str, *, limit: int | None = None) -> TopicWatchers:
        """The readers of a topic, furthest behind first: watchers, routers and workers.

        A client names itself by `watch(..., name=)`, or by the header `X-Penstock-Name`.
        """
        return await self._runner.run(view_calls.topic_watchers(topic, limit=limit))

    async def topic_partition(self, topic: str) -> TopicPartition:
        """Of which log partition a topic is, what waits there, and the log's last group."""
        return await self._runner.run(view_calls.topic_partition(topic))

    async def ingest_status(self) -> dict[str, Any]:
        """Windows, rates and the bottleneck of an ingest edge; `url` is its status port.

        Not retried: a failure is the answer.
        """
        return await self._runner.run(calls.ingest_status())

    async def backup(self, directory: str, *, wait_ms: int = 3_600_000) -> answers.BackupMade:
        """Have the server copy everything to a directory on its own machine while it runs.

        Not retried: a second try would find the directory in use.
        """
        return await self._runner.run(calls.backup(directory, wait_ms=wait_ms))


def _key(key: str | None) -> str | None:
    return uuid4().hex if key == AUTO_KEY else key
