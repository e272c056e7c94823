"""Topics for people: one, or a page of them by name, by rate, by lag, by bytes.

A page costs its topics, not all of them. Another order than by name has to look at all of them:
that happens in slices of the loop, and the order is kept for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.flow.priority import TOPIC_BANDS
from penstock.flow.rate import SPAN_MS, LazyRate
from penstock.protocol.answers import QueueCounts, TopicRow, TopicState
from penstock.protocol.limits import PAGE_SIZE, PAGE_SIZE_MAX
from penstock.protocol.values import RESERVED_PREFIX
from penstock.topics.core.topic import Topic
from penstock.topics.engine.views import push_of

if TYPE_CHECKING:
    from penstock.topics.engine.engine import Engine

SORTS: Final = ("name", "rate", "behind", "bytes")
NAMES_A_SLICE: Final = 512
"""How many topics are looked at before the loop does other work."""
ORDER_MS_MIN: Final = 1_000
ORDER_SHARE: Final = 20
"""An order is kept for twenty times as long as it took to find, and at least a second."""
ORDERS_MAX: Final = 16

Shown = Callable[[str], bool]


def everything(_name: str) -> bool:
    """Hide nothing."""
    return True


class TopicQuery(NamedTuple):
    """Which topics, in which order. The server's own are shown only to a prefix that names them."""

    prefix: str = ""
    after: str | None = None
    page_size: int = PAGE_SIZE
    sort: str = "name"
    type: str | None = None

    def has(self, topic: Topic) -> bool:
        """Whether a topic is wanted; its prefix is checked elsewhere."""
        if topic.is_reserved and not self.prefix.startswith(RESERVED_PREFIX):
            return False
        return self.type is None or topic.config.type == self.type


class Rates:
    """The rates of one topic, looked at now and then."""

    __slots__ = ("_in", "_out")

    def __init__(self, topic: Topic, now_ms: int) -> None:
        self._in = LazyRate(topic.head_seq, now_ms, _recent_per_s(topic, now_ms))
        self._out = LazyRate(topic.out_records, now_ms)

    def look(self, topic: Topic, now_ms: int) -> tuple[float, float]:
        """Records a second into the topic, and out of it to its readers."""
        in_per_s = self._in.look(topic.head_seq, topic.last_write_ms or 0, now_ms)
        out_per_s = self._out.look(topic.out_records, topic.last_out_ms, now_ms)
        return round(in_per_s, 2), round(out_per_s, 2)


def rates_of(topic: Topic, now_ms: int) -> tuple[float, float]:
    """Records a second in and out, an exponentially weighted mean over 5 s."""
    rates: Rates | None = topic.rates
    if rates is None:
        rates = topic.rates = Rates(topic, now_ms)
    return rates.look(topic, now_ms)


async def show_topic(
    engine: Engine, name: str, *, touch: bool = True, shown: Shown = everything
) -> TopicState:
    """The state of a topic, after its routers have delivered everything.

    Reasons do not name what is not `shown`.
    """
    await engine.forwarder.drain(name)
    topic = engine.topic(name)
    row = topic_row(engine, topic, touch=touch, shown=shown)
    queue = None
    if row.in_flight is not None:
        held = engine.writer(name).partition.queues[name]
        queue = QueueCounts(**held.counts(engine.clock.now_ms())._asdict())
    return TopicState(
        **{field: getattr(row, field) for field in _COMMON},
        next_seq=topic.head_seq + 1,
        config=topic.config,
        last_write_ts=topic.last_write_ms,
        last_read_ts=engine.recency.last_ms(name),
        queue=queue,
        epoch=topic.told_epoch,
    )


def topic_row(
    engine: Engine, topic: Topic, *, touch: bool = False, shown: Shown = everything
) -> TopicRow:
    """A topic as in a list."""
    name, now_ms = topic.name, engine.clock.now_ms()
    live = topic.at(now_ms)
    if touch:
        engine.recency.touch(name)
    in_per_s, out_per_s = rates_of(topic, now_ms)
    place, priority = engine.turns.place(name), engine.recency.priority(name)
    push = push_of(engine, name, place, shown)
    queue = engine.writer(name).partition.queues.get(name)
    counts = None if queue is None else queue.counts(now_ms)
    return TopicRow(
        topic=name,
        type=topic.config.type,
        durability=topic.config.durability,
        durable=topic.config.durability == "fsync",
        head_seq=topic.head_seq,
        earliest_seq=live.earliest_seq,
        count=live.count,
        size_bytes=live.size_bytes,
        effective_priority=priority,
        in_per_s=in_per_s,
        out_per_s=out_per_s,
        watchers=push["watchers"],
        watchers_behind=push["watchers_behind"],
        band=place["band"] or f"B{TOPIC_BANDS.of(priority, 0)}",
        reason=push["reason"],
        ready=None if counts is None else counts.ready,
        in_flight=None if counts is None else counts.in_flight,
    )


_COMMON: Final = tuple(
    name
    for name in TopicState.__struct_fields__
    if name in TopicRow.__struct_fields__ and name != "performance"
)
"""What a topic says of itself in a list and alone."""


class TopicLists:
    """Pages of topics; orders other than by name are kept for a while."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._orders: dict[tuple[str, str, str | None], tuple[int, list[str]]] = {}

    async def page(
        self, query: TopicQuery, *, touch: bool = False, shown: Shown = everything
    ) -> tuple[list[TopicRow], bool]:
        """A page of topics that may be shown, and whether there are more behind it.

        There is one page of an order other than by name: the first.
        """
        engine, more = self._engine, False
        if query.sort == "name":
            names = await self._by_name(query, shown, query.page_size + 1)
            names, more = names[: query.page_size], len(names) > query.page_size
        else:
            names = (await self._ordered(query, shown))[: query.page_size]
        topics = filter(None, map(engine.registry.topics.get, names))
        return [topic_row(engine, topic, touch=touch, shown=shown) for topic in topics], more

    async def _by_name(self, query: TopicQuery, shown: Shown, most: int) -> list[str]:
        """The first names after a cursor, at most so many."""
        registry = self._engine.registry
        found: list[str] = []
        after = query.after
        while True:
            part = list(islice(registry.names_from(query.prefix, after), NAMES_A_SLICE))
            wanted = (name for name in part if shown(name) and query.has(registry.topics[name]))
            found += islice(wanted, most - len(found))
            if len(found) == most or len(part) < NAMES_A_SLICE:
                return found
            after = part[-1]
            await asyncio.sleep(0)  # names may come and go meanwhile

    async def _ordered(self, query: TopicQuery, shown: Shown) -> list[str]:
        """Names in another order, first those with the greatest number; the others by name."""
        key, clock = (query.sort, query.prefix, query.type), self._engine.clock
        if shown is everything:
            until_ms, order = self._orders.get(key, (0, []))
            if clock.monotonic_ms() < until_ms:
                return order
        began_ms = clock.monotonic_ms()
        order = await self._find_order(query, shown)
        if shown is everything:
            now_ms = clock.monotonic_ms()
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            kept_ms = max(ORDER_MS_MIN, ORDER_SHARE * (now_ms - began_ms))
            self._orders[key] = (now_ms + kept_ms, order)
        return order

    async def _find_order(self, query: TopicQuery, shown: Shown) -> list[str]:
        ranked: list[tuple[tuple[float, float], str]] = []
        for part in self._candidates(query.sort):
            now_ms = self._engine.clock.now_ms()
            for topic in part:
                name = topic.name
                if name.startswith(query.prefix) and query.has(topic) and shown(name):
                    weight = self._weight(query.sort, topic, now_ms)
                    if weight > _NOTHING:
                        ranked.append((weight, name))
            await asyncio.sleep(0)
        first = sorted(
            nlargest(PAGE_SIZE_MAX, ranked), key=lambda each: (_falling(each[0]), each[1])
        )
        names = dict.fromkeys(name for _, name in first)
        if len(names) < PAGE_SIZE_MAX:
            names |= dict.fromkeys(await self._by_name(query, shown, PAGE_SIZE_MAX))
        return list(names)[:PAGE_SIZE_MAX]

    def _candidates(self, sort: str) -> Iterator[list[Topic]]:
        """The topics whose number may be above zero, in slices."""
        registry = self._engine.registry
        if sort != "behind":
            yield from registry.totals.topics.parts()
            return
        names = [*dict.fromkeys([*self._engine.watchers.by_topic, *registry.routers.by_source])]
        for part in _parts(names):
            yield [*filter(None, map(registry.topics.get, part))]

    def _weight(self, sort: str, topic: Topic, now_ms: int) -> tuple[float, float]:
        if sort == "bytes":
            return topic.size_bytes, topic.count
        if sort == "behind":
            behind = sum(self._engine.watchers.behind(topic.name))
            late = sum(each["behind"] for each in self._engine.forwarder.view(topic.name))
            return behind + (late > 0), late
        if (
            topic.rates is None
            and max(topic.last_write_ms or 0, topic.last_out_ms) < now_ms - QUIET_MS
        ):
            return _NOTHING  # spares the memory of rates for topics at rest
        return rates_of(topic, now_ms)


QUIET_MS: Final = 10 * SPAN_MS
"""After so long without a record, a rate is as good as nothing."""
_NOTHING: Final = (0.0, 0.0)


def _falling(weight: tuple[float, float]) -> tuple[float, float]:
    return -weight[0], -weight[1]


def _parts(names: list[str]) -> Iterator[Iterable[str]]:
    for start in range(0, len(names), NAMES_A_SLICE):
        yield names[start : start + NAMES_A_SLICE]


def _recent_per_s(topic: Topic, now_ms: int) -> float:
    """The rate of a topic that was never looked at, from the times of its records."""
    if (topic.last_write_ms or 0) < now_ms - SPAN_MS:
        return 0.0
    before_seq = max(topic.seq_before(now_ms - SPAN_MS), topic.earliest_seq - 1)
    return (topic.head_seq - before_seq) * 1e3 / SPAN_MS
