"""A client with topics of its own, one operation at a time: every outcome is known but the last.

After a crash each of its topics is as the answered operations made it, or as those and the one
without an answer made it: wholly, not in part.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.topics.core.registry import partition_of
from tests.integration.server.crash.model import TopicModel
from tests.integration.server.crash.payloads import Payloads, Wanted, write_body
from tests.integration.server.crash.wire import Reply, Wire

Topics = dict[str, TopicModel]
CLASSES = ("fsync", "disk", "memory", "ephemeral")
LIVE_MAX = 400
"""More records than this in a topic and half of them are deleted: runs are to be long, not slow."""


class Solo:
    """Topics that nobody else touches, checked to the last byte."""

    def __init__(self, name: str, seed: int, partitions: int = 2) -> None:
        self._random = Random(seed)
        self._payloads = Payloads(name)
        self._partitions = partitions
        self._names = [f"{name}-{number}" for number in range(5)]
        self._topics: Topics = {}
        self._unknown: Topics | None = None  # how it is if the last operation happened after all
        self._epochs: dict[str, int] = {}
        self._made_keys = 0
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        """Do one thing at random."""
        name = self._random.choice(self._names)
        topic = self._topics.get(name)
        if topic is None:
            create = self._random.choice((self._put, self._write))
            await create(wire, name, TopicModel())
        elif len(topic.live) > LIVE_MAX:
            await self._delete(wire, name, topic, topic.head - LIVE_MAX // 2, None)
        else:
            acts = (self._write, self._retry, self._remove, self._put, self._drop, self._look)
            chosen = self._random.choices(acts, (12, 3, 3, 2, 1, 2))[0]
            if self._random.random() < 0.15:
                await self._write_many(wire)
            else:
                await chosen(wire, name, topic)

    async def check(self, wire: Wire) -> None:
        """After a restart: everything is as it must be, for one of the two ways it may be."""
        wholes = {name: await wire.whole(name) for name in self._names}
        candidates = [self._topics] if self._unknown is None else [self._topics, self._unknown]
        reasons = []
        for topics in candidates:
            for name, model in topics.items():
                whole = wholes[name]
                model.restart(whole.head_seq if whole else 0)
            reason = _differs(topics, wholes)
            if reason is None:
                self._topics, self._unknown = topics, None
                return
            reasons.append(reason)
        raise AssertionError(" / if the last did happen: ".join(reasons))

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)
        for name, topic in self._topics.items():
            for key in list(topic.keys)[-20:]:
                await self._try_again(wire, name, topic, key)
        await self.check(wire)

    # Operations

    async def _do(
        self, change: Callable[[Topics], None], call: Callable[[], Any], *statuses: int
    ) -> Reply:
        """Ask for something: until it is answered nobody knows whether `change` happened."""
        after = {name: topic.copy() for name, topic in self._topics.items()}
        change(after)
        self._unknown = after
        reply: Reply = await call()
        assert reply.status in statuses, f"{reply.status} {reply.body[:300]!r}{self._stories()}"
        if reply.status in (200, 201):
            self._topics = after
        self._unknown = None
        self.answered += 1
        return reply

    def _stories(self) -> str:
        """What happened to each topic of late, for who reads of a failure."""
        return "".join(
            f"\n{name}: {topic.config}, head {topic.head}, {len(topic.live)} records of "
            f"{sum(record.size_bytes for record in topic.live.values())} bytes: {topic.story[-12:]}"
            for name, topic in self._topics.items()
        )

    async def _write(self, wire: Wire, name: str, topic: TopicModel) -> None:
        records = self._payloads.some(self._random)
        key = self._new_key() if self._random.random() < 0.4 else None
        config = b'{"durability":"%b"}' % self._random.choice(CLASSES).encode()
        is_new = name not in self._topics

        def change(topics: Topics) -> None:
            if is_new:
                topics[name] = TopicModel({"durability": config[15:-2].decode()})
            topics[name].append(records, key)

        body = write_body(records, key, config=config)
        path = f"/v0/topics/{name}"
        fits = topic.takes(records)
        statuses = (201,) if is_new else (200,) if fits else (422, 400)
        reply = await self._do(
            change if fits else _nothing, lambda: wire.call("POST", path, body), *statuses
        )
        if fits:
            told, model = reply.json, self._topics[name]
            assert told["last_seq"] == told["head_seq"] == model.head, (told, model.head)
            assert told["first_seq"] == model.head - len(records) + 1
            assert told["deduped"] is False

    async def _write_many(self, wire: Wire) -> None:
        """Write to all topics of one partition at once: all of it is there, or nothing."""
        place = self._random.randrange(self._partitions)
        names = [n for n in self._topics if partition_of(n, self._partitions) == place]
        names = [n for n in names if "discard" not in self._topics[n].config]
        writes: list[tuple[str, list[Wanted], str | None]] = [
            (name, self._payloads.some(self._random), self._random.choice((None, self._new_key())))
            for name in names
        ]
        if not writes:
            return

        def change(topics: Topics) -> None:
            for name, records, key in writes:
                topics[name].append(records, key)

        bodies = [
            write_body(records, key, topic=b'"%b"' % name.encode()) for name, records, key in writes
        ]
        body = b'{"writes":[%b]}' % b",".join(bodies)
        await self._do(change, lambda: wire.call("POST", "/v0/write", body), 200, 201)

    async def _retry(self, wire: Wire, name: str, topic: TopicModel) -> None:
        if topic.keys:
            key = self._random.choice(list(topic.keys)[-50:])
            await self._try_again(wire, name, topic, key)

    async def _try_again(self, wire: Wire, name: str, topic: TopicModel, key: str) -> None:
        """A key that was used is answered as it was then, whatever comes with it now."""
        body = write_body(self._payloads.some(self._random), key)
        reply = await self._do(_nothing, lambda: wire.call("POST", f"/v0/topics/{name}", body), 200)
        told = reply.json
        assert told["deduped"] is True, (key, told)
        assert (told["first_seq"], told["last_seq"]) == topic.keys[key], (key, told, topic.keys)

    async def _remove(self, wire: Wire, name: str, topic: TopicModel) -> None:
        before_seq = self._random.choice((None, self._random.randrange(topic.head + 3)))
        tag = self._random.choice((None, "a", "a*", "b:*", "none"))
        if before_seq is None and tag is None:
            tag = "ab"
        await self._delete(wire, name, topic, before_seq, tag)

    async def _delete(
        self, wire: Wire, name: str, topic: TopicModel, before_seq: int | None, tag: str | None
    ) -> None:
        body: dict[str, Any] = {} if before_seq is None else {"before_seq": before_seq}
        if tag is not None:
            body["match"] = tag
        expected = topic.copy().delete(before_seq, tag)
        reply = await self._do(
            lambda topics: _deleted(topics[name], before_seq, tag),
            lambda: wire.ask("POST", f"/v0/topics/{name}/delete", body),
            200,
        )
        assert reply.json["deleted"] == expected, (reply.json, expected)

    async def _put(self, wire: Wire, name: str, topic: TopicModel) -> None:
        kept = not topic.unlogged and topic.config["durability"] != "ephemeral"
        classes = CLASSES[:3] if topic.config.get("cap_bytes") else CLASSES
        changes: dict[str, Any] = self._random.choice(
            (
                {"cap_records": self._random.choice((0, 5, 50))},
                # A cap on bytes counts records that memory alone has: where there are both, what
                # a restart leaves depends on what it lost.
                {"cap_bytes": self._random.choice((0, 500, 20_000)) if kept else 0},
                {"durability": self._random.choice(classes)},
                {"priority": self._random.randrange(-9, 9)},
                {"discard": self._random.choice(("old", "reject"))},
            )
        )

        def change(topics: Topics) -> None:
            topics.setdefault(name, TopicModel()).configure(changes)

        await self._do(change, lambda: wire.ask("PUT", f"/v0/topics/{name}", changes), 200, 201)

    async def _drop(self, wire: Wire, name: str, topic: TopicModel) -> None:
        def change(topics: Topics) -> None:
            del topics[name]

        reply = await self._do(change, lambda: wire.ask("DELETE", f"/v0/topics/{name}"), 200)
        assert reply.json["deleted"] is True

    async def _look(self, wire: Wire, name: str, topic: TopicModel) -> None:
        """What can be seen now is what was answered: nothing more, nothing less."""
        reason = _differs({name: topic}, {name: await wire.whole(name)})
        assert reason is None, f"while it runs: {reason}"

    def _new_key(self) -> str:
        self._made_keys += 1
        return f"k{self._made_keys}"


def _nothing(_topics: Topics) -> None:
    """A change that is none."""


def _deleted(topic: TopicModel, before_seq: int | None, tag: str | None) -> None:
    topic.delete(before_seq, tag)


def _differs(topics: Topics, wholes: dict[str, Any]) -> str | None:
    """What is wrong with the first topic that is not as its model says."""
    for name, whole in wholes.items():
        model = topics.get(name)
        if (model is None) != (whole is None):
            return f"{name}: {'is not' if whole is None else 'is'} there"
        if model is not None and (reason := model.differs(whole)):
            return f"{name} ({model.config}): {reason}; {model.story[-20:]}"
    return None
