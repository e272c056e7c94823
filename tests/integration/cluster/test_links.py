"""Links between nodes on real sockets: what arrives, who is refused, and what is counted."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from penstock.cluster import accepting
from penstock.cluster.accepting import GREETINGS_OF_ONE_MAX
from penstock.cluster.frames import LETTER_BYTES_MAX, FrameWriter
from penstock.cluster.handshake import UNTOLD, EntryVersions, LinkIdentity, LinkMember
from penstock.cluster.links import Links, LinkTls, link_tls
from penstock.cluster.outbox import RAFT, WAITING_BYTES_MAX
from penstock.kernel.system import SystemClock
from tests.waiting import until

SECRET = b"s" * 32
NEXT = EntryVersions(3, 4)
"""Of a node that could write the next version of entries."""


class Node:
    """Links and what they received."""

    def __init__(
        self,
        number: int,
        *,
        cluster: str = "c",
        secret: bytes = b"",
        removed: tuple[int, ...] = (),
        tls: LinkTls | None = None,
        entries: EntryVersions = UNTOLD,
    ) -> None:
        self._entries = entries
        self.received: list[tuple[int, int, bytes]] = []
        self.changes: list[tuple[int, bool]] = []
        self.number = number
        self._cluster, self._secret, self._removed, self._tls = cluster, secret, removed, tls

    async def start(self, port: int = 0) -> None:
        self.links = Links(
            self._identity("127.0.0.1:1"),
            clock=SystemClock(),
            on_item=lambda *item: self.received.append(item),
            on_link=lambda *change: self.changes.append(change),
            is_removed=self._removed.__contains__,
            tls=self._tls,
        )
        host, self.port = await self.links.start("127.0.0.1", port)
        self.links.identity = self._identity(f"{host}:{self.port}")
        self.member = self.links.identity.member

    def _identity(self, address: str) -> LinkIdentity:
        member = LinkMember(self.number, f"n{self.number}", address)
        return LinkIdentity(
            cluster=self._cluster, member=member, secret=self._secret, entries=self._entries
        )


@asynccontextmanager
async def nodes(*made: Node) -> AsyncIterator[None]:
    for node in made:
        await node.start()
    try:
        yield
    finally:
        for node in made:
            await node.links.stop()


def run(test: Callable[[], object]) -> None:
    """On the loop of the server."""
    uvloop.run(test())  # type: ignore[arg-type]


@pytest.mark.parametrize("secret", [SECRET, b""], ids=["secret", "none"])
def test_items_arrive_in_order_and_a_peer_that_dialled_is_dialled_back(secret: bytes) -> None:
    async def test() -> None:
        a, b = Node(1, secret=secret), Node(2, secret=secret)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2) and b.links.is_up(1))
            for number in range(100):
                assert a.links.send(2, RAFT, b"%d" % number)
            assert b.links.send(1, RAFT, b"back")
            await until(lambda: len(b.received) == 100 and a.received)
            assert b.received == [(1, RAFT, b"%d" % number) for number in range(100)]
            assert a.links.counters.letters_sent == 1  # one turn, one letter

    run(test)


def test_a_node_with_an_old_list_of_members_keeps_the_peers_that_dialled_it() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2, removed=(3,))
        gone = Node(3)
        async with nodes(a, b, gone):
            a.links.know([b.member])
            gone.links.know([b.member])
            await until(lambda: b.links.is_up(1))
            b.links.know([LinkMember(9, "n9", a.member.address)])  # where another member was
            await until(lambda: b.links.counters.refused)
            assert b.links.is_up(1)
            assert b.links.send(1, RAFT, b"still")
            await until(lambda: a.received)
            assert not any(each.member.id == 3 for each in b.links.status())

    run(test)


def test_what_is_not_to_wait_for_the_end_of_the_turn_is_sent_at_once_and_once() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            assert a.links.send(2, RAFT, b"heartbeat")
            a.links.flush()
            assert a.links.counters.letters_sent == 1
            a.links.flush()
            assert a.links.send(2, RAFT, b"later")
            assert a.links.counters.letters_sent == 1
            await until(lambda: len(b.received) == 2)
            assert [payload for _, _, payload in b.received] == [b"heartbeat", b"later"]
            assert a.links.counters.letters_sent == 2

    run(test)


def test_a_peer_that_comes_back_is_dialled_again() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a):
            await b.start()
            port = b.port
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            await b.links.stop()
            await until(lambda: not a.links.is_up(2))
            assert not a.links.send(2, RAFT, b"lost")
            async with nodes():
                await b.start(port)
                try:
                    await until(lambda: a.links.is_up(2))
                    a.links.send(2, RAFT, b"again")
                    await until(lambda: b.received)
                finally:
                    await b.links.stop()
        assert a.changes[:3] == [(2, True), (2, False), (2, True)]

    run(test)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (Node(1, cluster="other"), Node(2), "of cluster other"),
        (Node(1), Node(2, removed=(1,)), "was removed"),
        (Node(1, secret=SECRET), Node(2), "has a secret"),
        (Node(1, secret=SECRET), Node(2, secret=b"x" * 32), "another secret"),
        (Node(1), Node(2, entries=EntryVersions(4, 4)), "upgrade n1"),
        (Node(1, entries=EntryVersions(4, 4)), Node(2), "upgrade n2"),
    ],
    ids=[
        "cluster",
        "removed",
        "one without a secret",
        "another secret",
        "an old one dials",
        "a new one dials",
    ],
)
def test_a_stranger_is_refused_and_both_sides_say_why(
    a: Node, b: Node, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.counters.refused and b.links.counters.refused)
            assert reason in a.links.status()[0].problem
            assert not a.links.is_up(2)

    with caplog.at_level(logging.WARNING, "penstock.cluster"):
        run(test)
    assert sum(reason in record.getMessage() for record in caplog.records) >= 2


def test_a_peer_that_cannot_read_what_is_written_from_now_on_is_let_go_and_told_why() -> None:
    async def test() -> None:
        a, b, c = (Node(1, entries=NEXT), Node(2), Node(3, entries=NEXT))
        async with nodes(a, b, c):
            a.links.know([b.member, c.member])
            await until(lambda: a.links.is_up(2) and b.links.is_up(1) and c.links.is_up(1))
            assert a.links.told() == {2: UNTOLD, 3: NEXT}
            a.links.write_entries(4)
            reason = "n1 writes entries of version 4 and n2 reads them up to version 3"
            await until(lambda: reason in problem_of(a, 2) and reason in problem_of(b, 1))
            assert not a.links.send(2, RAFT, b"an entry of version 4")
            assert a.links.is_up(3)
            assert a.links.told() == {3: NEXT}
            assert b.received == []

    run(test)


def problem_of(node: Node, member: int) -> str:
    found = {each.member.id: each.problem for each in node.links.status()}
    return found.get(member, "")


def test_a_directory_that_is_not_the_expected_member_is_told_of_replace() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([LinkMember(9, "n2", b.member.address)])
            await until(lambda: a.links.status()[0].problem)
            assert "replace" in a.links.status()[0].problem

    run(test)


def test_refusals_are_counted_and_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        b = Node(2)
        async with nodes(b):
            for _ in range(20):
                await garbage(b.port, b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: b.links.counters.bad_letters == 20)

    with caplog.at_level(logging.WARNING, "penstock.cluster"):
        run(test)
    assert 1 <= len(caplog.records) < 20


async def garbage(port: int, data: bytes) -> None:
    """Send bytes that are no letters, and wait until the node closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    "data",
    [
        (LETTER_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4),
        random.Random(7).randbytes(1_000),
        FrameWriter().frame(b"no greeting"),
        FrameWriter().frame(bytes(5_000)),
    ],
    ids=["16 MiB + 1", "random bytes", "no greeting", "a long one before the greeting"],
)
def test_bad_bytes_close_their_connection_and_nothing_else(data: bytes) -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            await garbage(b.port, data)
            assert b.links.counters.bad_letters == 1
            a.links.send(2, RAFT, b"on")
            await until(lambda: b.received)
            assert a.changes == [(2, True)]

    run(test)


def test_a_letter_that_is_none_closes_a_peers_connection_which_is_dialled_again() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            connection = a.links._peers[2].connection
            assert connection is not None
            connection._transport.write(FrameWriter().frame(b"\xc1 no letter"))
            await until(lambda: a.changes == [(2, True), (2, False), (2, True)])
            assert b.links.counters.bad_letters == 1

    run(test)


def test_half_a_letter_waits_and_is_given_up_with_its_connection() -> None:
    async def test() -> None:
        b = Node(2)
        async with nodes(b):
            _, writer = await asyncio.open_connection("127.0.0.1", b.port)
            writer.write(FrameWriter().frame(b"hello")[:7])
            await until(lambda: b.links.port.connections)
            writer.close()
            await until(lambda: not b.links.port.connections)
            assert b.links.counters.bad_letters == 0
            assert b.received == []

    run(test)


def test_while_a_peer_takes_nothing_appends_are_dropped_and_heartbeats_are_not() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            piece = bytes(1 << 20)
            taken = 0
            # The peer's loop is this one: it reads nothing until this test awaits.
            while a.links.send(2, RAFT, piece, is_droppable=True):
                taken += len(piece)
            assert WAITING_BYTES_MAX - len(piece) <= taken + len(piece) <= WAITING_BYTES_MAX + 1
            assert a.links.send(2, RAFT, b"beat")
            assert a.links.counters.dropped == 1
            await until(lambda: b.received and b.received[-1][2] == b"beat")

    run(test)


def test_an_item_larger_than_a_letter_arrives_whole_among_others() -> None:
    async def test() -> None:
        a, b = Node(1, secret=SECRET), Node(2, secret=SECRET)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            large = random.Random(7).randbytes(3 * WAITING_BYTES_MAX)  # more than what may wait
            assert a.links.send(2, RAFT, large, is_droppable=True)
            await asyncio.sleep(0)  # its first parts are with the connection now
            assert a.links.send(2, RAFT, b"beat")
            await until(lambda: len(b.received) == 2)
            assert b.received == [(1, RAFT, b"beat"), (1, RAFT, large)]
            assert a.changes == [(2, True)]  # the connection was not given up meanwhile
            assert b.links.counters.bad_letters == 0

    run(test)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and a certificate of each."""
    place = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(
            ["openssl", *words], cwd=place, check=True, capture_output=True,
            env={**os.environ, "RANDFILE": str(place / "rnd")},
        )  # fmt: skip

    for authority in ("ours", "theirs"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                "-subj", f"/CN={authority}", "-keyout", f"{authority}-ca.key",
                "-out", f"{authority}-ca.pem")  # fmt: skip
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=node",
                "-keyout", f"{authority}.key", "-out", f"{authority}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{authority}.csr", "-CA", f"{authority}-ca.pem",
                "-CAkey", f"{authority}-ca.key", "-CAcreateserial", "-days", "2",
                "-out", f"{authority}.pem")  # fmt: skip
    return place


def tls(place: Path, whose: str) -> LinkTls:
    return link_tls(place / f"{whose}.pem", place / f"{whose}.key", place / f"{whose}-ca.pem")


def test_with_tls_both_sides_show_a_certificate(certificates: Path) -> None:
    async def test() -> None:
        a, b = Node(1, tls=tls(certificates, "ours")), Node(2, tls=tls(certificates, "ours"))
        stranger = Node(3, tls=tls(certificates, "theirs"))
        plain = Node(4)
        async with nodes(a, b, stranger, plain):
            a.links.know([b.member])
            stranger.links.know([b.member])
            plain.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            a.links.send(2, RAFT, b"sealed")
            await until(lambda: b.received)
            await until(lambda: stranger.links.status()[0].problem)
            await until(lambda: plain.links.status()[0].problem)
            assert not b.links.is_up(3)
            assert not b.links.is_up(4)
            assert len(b.received) == 1

    run(test)


def test_seventy_connects_without_tls_are_counted_and_do_not_keep_a_peer_out(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        a, b = Node(1, tls=tls(certificates, "ours")), Node(2, tls=tls(certificates, "ours"))
        async with nodes(a, b):
            for _ in range(70):
                _, writer = await asyncio.open_connection("127.0.0.1", b.port)
                writer.close()
            for _ in range(70):
                await garbage(b.port, b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: b.links.counters.refused >= 140)
            assert not b.links.port.connections
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))

    with caplog.at_level(logging.WARNING, "penstock.cluster"):
        run(test)
    assert any("did not prove by TLS" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) < 140


def test_a_bad_certificate_is_counted_and_logged_on_both_sides(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        b = Node(2, tls=tls(certificates, "ours"))
        stranger = Node(3, tls=tls(certificates, "theirs"))
        async with nodes(b, stranger):
            stranger.links.know([b.member])
            await until(lambda: b.links.counters.refused and stranger.links.counters.refused)
            assert stranger.links.status()[0].problem

    with caplog.at_level(logging.WARNING, "penstock.cluster"):
        run(test)
    told = [record.getMessage() for record in caplog.records]
    assert any("did not prove by TLS" in each for each in told), told
    assert any("no TLS with n2" in each for each in told), told


def test_a_certificate_that_only_the_accepting_side_rejects_is_counted_on_both_sides(
    certificates: Path,
) -> None:
    """The one that dials has shown its certificate, and hears only later what became of it."""

    async def test() -> None:
        ours, theirs = tls(certificates, "ours"), tls(certificates, "theirs")
        theirs.dial.load_verify_locations(certificates / "ours-ca.pem")
        b, stranger = Node(2, tls=ours), Node(3, tls=theirs)
        async with nodes(b, stranger):
            stranger.links.know([b.member])
            await until(lambda: b.links.counters.refused and stranger.links.counters.refused)
            assert not stranger.links.is_up(2)

    run(test)


def test_a_stranger_that_says_nothing_holds_half_of_the_places_at_most() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            silent = [
                await asyncio.open_connection("127.0.0.1", b.port)
                for _ in range(GREETINGS_OF_ONE_MAX)
            ]
            await until(lambda: len(b.links.port.connections) == GREETINGS_OF_ONE_MAX)
            reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
            assert b"too many peers" in await reader.read()
            writer.close()
            other = await asyncio.open_connection("127.0.0.1", b.port, local_addr=("127.0.0.9", 0))
            await until(lambda: len(b.links.port.connections) == GREETINGS_OF_ONE_MAX + 1)
            for _, writer in (*silent, other):
                writer.close()
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))

    run(test)


def test_who_says_nothing_is_closed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "GREETING_S", 0.05)

    async def test() -> None:
        b = Node(2)
        async with nodes(b):
            reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
            assert b"did not greet" in await reader.read()
            writer.close()
            assert b.links.counters.refused == 1

    run(test)


def test_a_machine_that_is_gone_is_noticed_on_a_connection_that_sends_nothing() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        async with nodes(a, b):
            a.links.know([b.member])
            await until(lambda: a.links.is_up(2))
            for connection in b.links.port.connections:
                assert connection._transport is not None
                accepted = connection._transport.get_extra_info("socket")
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    run(test)
