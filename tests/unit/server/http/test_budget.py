from __future__ import annotations

import gzip

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.http.budget import BodyBudget
from penstock.server.http.message import TransportLimits
from tests.unit.server.http.fake_loop import Desk, Peer, echo, get, post


class Reader:
    """Reads a body as long as it may."""

    def __init__(self, budget: BodyBudget, size: int) -> None:
        self.budget, self.left, self.taken, self.may_read = budget, size, 0, True
        self.body = b"x" * (size + 1)

    def resume_body(self) -> None:
        self.may_read = True

    def read(self) -> None:
        size = min(10, self.left)
        self.left -= size
        self.taken += size
        self.may_read = self.budget.take(self, size) or not self.left
        if not self.left:
            self.budget.finish(self, self.body)

    def answer(self) -> None:
        self.budget.give(self.taken, self.body)
        self.taken = 0


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_whatever_the_order_every_body_is_read_in_bounded_memory(sizes, random):
    budget = BodyBudget(100, 10**6)
    readers = [Reader(budget, size) for size in sizes]
    while unfinished := [reader for reader in readers if reader.left]:
        able = [reader for reader in unfinished if reader.may_read]
        assert able or any(not reader.left and reader.taken for reader in readers)
        done = [reader for reader in readers if not reader.left and reader.taken]
        if able and (not done or random.random() < 0.8):
            random.choice(able).read()
        else:
            random.choice(done).answer()
        assert budget.used <= 100 + max(sizes) + 10 * len(sizes)
    for reader in readers:
        reader.answer()
    assert budget.used == 0


def test_unfinished_bodies_wait_for_memory_and_all_are_answered():
    first = Peer(echo, TransportLimits(buffered_bytes_max=100))
    peers = [first, *(Peer(echo, service=first.service) for _ in range(3))]
    requests = [post("/", b"x" * 200) for _ in peers]
    for peer, request in zip(peers, requests, strict=True):
        peer.send(request[:-100])
    assert [peer.transport.reading for peer in peers] == [True, True, False, False]
    peers[2].wait(9)
    peers[1].send(requests[1][-100:])
    peers[1].send(get("/"))
    assert [answer.status for answer in peers[1].answers()] == [200, 200]
    for waiting in (2, 3):
        peers[waiting].wait(1)
        peers[waiting].send(requests[waiting][-100:])
        assert peers[waiting].answers()[0].status == 200
    peers[0].wait(30)
    assert peers[0].answers()[0].code == "invalid_request", "it is the peer who is slow"
    assert first.service.budget.used == 0


def test_who_sends_slowly_while_others_wait_for_memory_is_told_to_come_back():
    first = Peer(echo, TransportLimits(buffered_bytes_max=100, body_stall_s=30))
    second, third = (Peer(echo, service=first.service) for _ in range(2))
    request = post("/", b"x" * 200)
    first.send(request[:-50])  # it is the one that may go on
    second.send(request[:-50])
    assert not second.transport.reading
    for _ in range(12):
        first.wait(1)
        if not first.transport.eof_written:
            first.send(b"x")
    (told,) = first.answers()
    assert (told.status, told.code, told.headers["retry-after"]) == (429, "throttled", "1")
    second.send(request[-50:])
    assert second.answers()[0].status == 200
    third.send(request)
    assert third.answers()[0].status == 200


def test_a_burst_pays_for_no_trickle_afterwards():
    peer = Peer(echo)
    peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n" + bytes(9_000_000))
    for _ in range(70):
        peer.wait(1)
        if not peer.transport.eof_written:
            peer.send(b"x")
    assert peer.answers()[0].code == "invalid_request"
    assert peer.service.budget.used == 0


def test_so_many_little_bodies_that_memory_ends_are_refused_and_can_come_back():
    limits = TransportLimits(buffered_bytes_max=100, buffered_bytes_refused=300)
    first = Peer(echo, limits)
    peers = [first, *(Peer(echo, service=first.service) for _ in range(5))]
    request = post("/", b"x" * 200)
    for peer in peers:
        peer.send(request[:-120])
    assert first.service.budget.used <= 300 + 80
    refused = [peer for peer in peers if peer.sent]
    assert {(p.answers()[0].status, p.answers()[0].headers["retry-after"]) for p in refused} == {
        (429, "1")
    }
    favoured = peers[1]  # the first that went beyond the budget
    for peer in [favoured, *(each for each in peers if each not in (favoured, *refused))]:
        peer.send(request[-120:])
        assert peer.answers()[0].status == 200
    assert first.service.budget.used == 0


def test_no_second_body_goes_beyond_the_budget_before_the_first_is_answered():
    desk = Desk()
    first = Peer(desk, TransportLimits(buffered_bytes_max=100))
    second = Peer(desk, service=first.service)
    request = post("/", b"x" * 200)
    first.send(request[:-50])
    second.send(request[:-50])
    first.send(request[-50:])
    assert not second.transport.reading
    desk.exchanges[0].reply_json(b"")
    assert second.transport.reading
    second.send(request[-50:])
    assert len(desk.exchanges) == 2


def test_many_bombs_at_once_stay_within_the_budget_and_one_body():
    limits = TransportLimits(buffered_bytes_max=4_000_000, body_bytes_max=3_000_000)
    peers = [Peer(echo, limits)]
    peers += [Peer(echo, service=peers[0].service) for _ in range(9)]
    bomb = post("/", gzip.compress(bytes(30_000_000)), "Content-Encoding: gzip")
    service, most = peers[0].service, 0
    for peer in peers:
        peer.transport.protocol.data_received(bomb)
    loop = peers[0].loop
    while loop._soon:
        callback, parts = loop._soon.popleft()
        callback(*parts)
        most = max(most, service.budget.used)
    assert [peer.answers()[0].status for peer in peers] == [413] * 10
    assert most < 4_000_000 + 3_000_000 + 10 * len(bomb) + 10 * 2**20
    assert service.budget.used == 0


def test_small_whole_requests_are_served_while_large_ones_wait():
    large = Peer(echo, TransportLimits(buffered_bytes_max=100))
    large.send(post("/", b"x" * 200)[:-10])
    small = Peer(echo, service=large.service)
    small.send(post("/", b"y" * 50))
    assert small.answers()[0].status == 200
