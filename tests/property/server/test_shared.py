"""Whoever comes, goes, lags and reads again: a watcher gets each record after its place once."""

from __future__ import annotations

import asyncio
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.push import shared
from tests.unit.server.fakes import run, serving
from tests.waiting import until

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from([{}, {"tail": True}])),
        st.tuples(st.just("write"), st.integers(1, 7)),
        st.tuples(st.just("turns"), st.integers(1, 4)),
        st.tuples(st.just("lag"), st.integers(0, 2)),
        st.tuples(st.just("read"), st.none()),
        st.tuples(st.just("leave"), st.none()),
        st.tuples(st.just("delete"), st.integers(1, 30)),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS, limit=st.sampled_from([2, 256]), choices=st.randoms(use_true_random=False))
def test_every_watcher_gets_what_comes_after_its_place_once(steps, limit, choices):
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/t")
            scene = Scene(client, limit, choices)
            for what, value in steps:
                await getattr(scene, what)(value)
            for stream in scene.watching:
                stream.read(None)
            await scene.write(1)
            await until(lambda: all(got(s)[-1:] == [scene.head] for s in scene.watching))
            scene.check()

    with mock.patch.object(shared, "BATCH_MEMBERS_MAX", 3):
        run(go)


class Scene:
    """A topic whose records say their seq, its watchers with where each began, what was deleted."""

    def __init__(self, client, limit, choices):
        self.client = client
        self.limit = limit
        self.choices = choices
        self.head = 0
        self.deleted = set()
        self.watching = {}

    async def join(self, place):
        if len(self.watching) < 12:
            stream, _ = await self.client.watch(topics={"t": place}, limit=self.limit)
            self.watching[stream] = self.head if place else 0

    async def write(self, count):
        await self.client.write("t", *range(self.head + 1, self.head + count + 1))
        self.head += count

    async def turns(self, count):
        for _ in range(count):
            await asyncio.sleep(0)

    async def delete(self, before_seq):
        if before_seq <= self.head:
            await self.client.ask("POST", "/v0/topics/t/delete", {"before_seq": before_seq})
            self.deleted.update(range(1, before_seq))

    async def lag(self, room):
        if self.watching:
            self.choices.choice(list(self.watching)).room = room

    async def read(self, _):
        if self.watching:
            self.choices.choice(list(self.watching)).read(None)

    async def leave(self, _):
        if self.watching:
            stream = self.choices.choice(list(self.watching))
            del self.watching[stream]
            stream.on_gone()

    def check(self):
        for stream, place in self.watching.items():
            seqs = got(stream)
            assert seqs == sorted(set(seqs)), "once and in order"
            assert min(seqs) > place
            assert set(range(place + 1, self.head + 1)) - set(seqs) <= self.deleted
            assert stream.events()[-1][0] == "caught-up"


def got(stream):
    """The payloads that a watcher got; each is the record's seq."""
    return [
        record["data"]
        for kind, data in stream.events()
        if kind == "record"
        for record in data["records"]
    ]
