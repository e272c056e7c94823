"""The pure channel against a plain list, under any order of calls."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.flow.channel import Closed, WindowedChannel


class ChannelMachine(RuleBasedStateMachine):
    """Nothing is lost, doubled or reordered, and the window holds for every new item."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: WindowedChannel[int] = WindowedChannel(8)
        self.next_item = 0
        self.queued: list[int] = []
        self.received = 0
        self.now_ms = 0

    @precondition(lambda self: not self.channel.closed)
    @rule(size_bytes=st.integers(0, 99))
    def send(self, size_bytes: int) -> None:
        room = self.channel.room
        before = self.channel.occupied
        sent = self.channel.try_send_many([self.next_item], size_bytes)
        assert sent == (room > 0)
        if sent:
            assert before < self.channel.window, "a new item never breaks the window"
            self.queued.append(self.next_item)
            self.next_item += 1

    @precondition(lambda self: not self.channel.closed)
    @rule(count=st.integers(0, 20))
    def send_many(self, count: int) -> None:
        room = self.channel.room
        items = range(self.next_item, self.next_item + count)
        sent = self.channel.try_send_many(items)
        assert sent == min(count, room)
        assert not sent or self.channel.occupied <= self.channel.window
        self.queued += items[:sent]
        self.next_item += sent

    @rule(count=st.integers(0, 20))
    def receive(self, count: int) -> None:
        expected, self.queued = self.queued[:count], self.queued[count:]
        assert self.channel.receive_up_to(count) == expected
        self.received += len(expected)

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.received))
        self.channel.done(count, latency_ns=5)
        self.received -= count

    @rule(window=st.integers(1, 40))
    def resize(self, window: int) -> None:
        self.channel.resize(window)

    @rule(pass_ms=st.integers(0, 300))
    def measure(self, pass_ms: int) -> None:
        self.now_ms += pass_ms
        self.channel.measure(self.now_ms)

    @rule()
    def close(self) -> None:
        self.channel.close()
        try:
            self.channel.try_send_many([-1])
        except Closed:
            return
        raise AssertionError("a closed channel took an item")

    @invariant()
    def counts_agree(self) -> None:
        assert self.channel.occupied == len(self.queued) + self.received
        assert self.channel.items_in == self.next_item
        assert self.channel.items_out == self.next_item - len(self.queued) - self.received

    @invariant()
    def an_idle_channel_always_lets_a_sender_in(self) -> None:
        assert self.channel.occupied or self.channel.room >= 1


TestChannel = ChannelMachine.TestCase
