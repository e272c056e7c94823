"""Every call of both clients against a real server process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic

import pytest
import uvloop

from penstock.client import (
    AsyncClient,
    CaughtUp,
    Client,
    ClientSettings,
    Record,
    Records,
    Tombstone,
    TopicDeleted,
)
from penstock.client.errors import Untrusted
from penstock.protocol.errors import (
    NotAQueue,
    RouterCycle,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    Unauthorized,
)
from tests.conformance.servers import ServerProcess
from tests.unit.client.faces import FACES, named

NUMBERS = count(1)
LIMIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield process.start()
    finally:
        process.close()


def url_of(server: ServerProcess) -> str:
    address = server.address
    return f"http://{address.host}:{address.port}"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(url_of(server)) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"t{next(NUMBERS)}"


def test_a_topic_from_its_beginning_to_its_end(client, topic):
    put = client.put_topic(topic, cap_records=100, durability="memory", priority=7)
    assert put.created
    assert (put.config.cap_records, put.config.durability, put.config.priority) == (
        100,
        "memory",
        7,
    )
    again = client.put_topic(topic, ttl_ms=5_000)
    assert not again.created
    assert (again.config.cap_records, again.config.ttl_ms) == (100, 5_000)
    written = client.write(topic, [{"n": n} for n in range(3)])
    assert (written.first_seq, written.last_seq, written.seqs) == (1, 3, [1, 2, 3])
    state = client.get_topic(topic)
    assert (state.head_seq, state.count, state.queue) == (3, 3, None)
    assert [row.topic for row in client.list_topics(topic)] == [topic]
    with pytest.raises(TopicNotEmpty):
        client.delete_topic(topic, if_empty=True)
    assert client.delete_topic(topic).deleted
    assert not client.delete_topic(topic).deleted
    with pytest.raises(TopicNotFound):
        client.get_topic(topic)


def test_what_is_read_is_what_was_written(client, topic):
    client.write(
        topic,
        [Record({"a": [1, 2.5, None]}, tag="x", meta={"k": "v"}), b'{"b" : 1.0}', "text"],
        node="me",
    )
    page = client.diff(topic, include_tags=True)
    first, second, third = page.records
    assert (first.data, first.tag, first.meta, first.node) == (
        {"a": [1, 2.5, None]}, "x", {"k": "v"}, "me",
    )  # fmt: skip
    assert second.data_json == b'{"b" : 1.0}'
    assert third.data_as(str) == "text"
    assert page.caught_up
    assert page.epoch is not None
    assert client.diff(topic, node="me").records == []
    assert [record.seq for record in client.diff(topic, tag="x").records] == [1]
    assert client.diff(topic, from_ts=first.ts_ms).records[0].seq == 1
    assert client.diff(topic, from_ts=third.ts_ms + 60_000).records == []


def test_a_key_makes_a_write_land_once(client, topic):
    first = client.write(topic, [1], idempotency_key="k")
    again = client.write(topic, [1], idempotency_key="k")
    assert again.deduped
    assert again.first_seq == first.first_seq
    assert client.get_topic(topic).count == 1


def test_reading_and_listing_page_after_page(client, topic):
    client.write(topic, range(2_500))
    pages = list(client.read(topic, page_size=1_000))
    assert [len(page.records) for page in pages] == [1_000, 1_000, 500]
    assert [record.data for page in pages for record in page.records] == list(range(2_500))
    names = [f"{topic}.{n}" for n in range(5)]
    for name in names:
        client.put_topic(name)
    assert [row.topic for row in client.list_topics(f"{topic}.", page_size=2)] == names


def test_a_page_as_an_arrow_table(client, topic):
    client.write(topic, [Record({"n": n}, tag=f"t{n}") for n in range(3)])
    table = client.diff_arrow(topic, include_tags=True)
    assert table.column("seq").to_pylist() == [1, 2, 3]
    assert table.column("tag").to_pylist() == ["t0", "t1", "t2"]
    assert [json.loads(text) for text in table.column("data").to_pylist()] == [
        {"n": 0}, {"n": 1}, {"n": 2},
    ]  # fmt: skip
    assert json.loads(table.schema.metadata[b"next_from_seq"]) == 3


def test_records_are_deleted_by_seq_and_by_tag(client, topic):
    client.write(topic, [Record(n, tag=f"chat-{n % 2}:x") for n in range(10)])
    assert client.delete_records(topic, before_seq=3).deleted == 2
    assert client.delete_records(topic, match="chat-1:*").deleted == 4
    assert [record.data for record in client.diff(topic).records] == [2, 4, 6, 8]


def test_a_full_topic_says_so(client, topic):
    client.put_topic(topic, cap_records=2, discard="reject")
    client.write(topic, [1, 2])
    with pytest.raises(TopicFull) as caught:
        client.write(topic, [3])
    assert caught.value.detail["cap_records"] == 2


def test_routers(client, topic):
    source, dest = f"{topic}.s", f"{topic}.d"
    client.put_topic(source)
    put = client.put_router(f"{topic}>r", source, dest, filter="a*")
    assert (put.created, put.filter) == (True, ["tag", "Glob", "a*"])
    client.write(source, [Record(1, tag="ab"), Record(2, tag="b")])
    assert [record.data for record in client.diff(dest).records] == [1]
    assert client.get_router(f"{topic}>r").forwarded_total == 1
    assert [row.dest for row in client.list_routers(topic, source=source)] == [dest]
    with pytest.raises(RouterCycle):
        client.put_router(f"{topic}>back", dest, source)
    with pytest.raises(TopicExistsIncompatible):
        client.put_router(f"{topic}>r", source, f"{topic}.e")
    assert client.delete_router(f"{topic}>r").deleted


def test_queues(client, topic):
    client.put_topic(topic, type="queue", lease_ms=60_000)
    client.write(topic, ["a", "b", "c"])
    claims = client.claim(topic, "me", count=3)
    assert [job.data for job in claims.claimed] == ["a", "b", "c"]
    first, second, third = claims.claimed
    assert client.ack(topic, "me", [first]).acked == 1
    assert client.ack(topic, "me", [first]).skipped == [1]
    assert client.nack(topic, "me", [second.seq]).nacked == 1
    assert client.extend(topic, "me", [third], lease_ms=90_000).deadlines[3] > third.deadline_ms
    assert client.get_topic(topic).queue.in_flight == 1
    log = f"{topic}.log"
    client.put_topic(log)
    with pytest.raises(NotAQueue):
        client.claim(log, "me")


def test_work_is_done_job_by_job(client, topic):
    client.put_topic(topic, type="queue")
    client.write(topic, range(20))
    done = []
    with client.work(topic, "me", count=4) as work:
        for job in work:
            if job.data == 7 and job.deliveries == 1:
                assert job.nack()
                continue
            with job:
                done.append(job.data)
            if len(done) == 20:
                break
    assert sorted(done) == list(range(20))
    assert client.get_topic(topic).count == 0


def test_a_watch_sees_what_is_there_what_comes_and_the_end(client, topic):
    client.write(topic, ["before"])
    with client.watch(topic) as watch:
        assert [record.data for record in next(watch).records] == ["before"]
        assert isinstance(next(watch), CaughtUp)
        client.write(topic, ["after"])
        assert [record.data for record in next(watch).records] == ["after"]
        assert isinstance(next(watch), CaughtUp)
        client.delete_topic(topic)
        assert [type(event) for event in watch] == [TopicDeleted]


def test_a_topic_made_anew_while_the_stream_was_down_is_read_from_its_start(client, topic):
    client.write(topic, ["old 1", "old 2"])
    with client.watch(topic) as watch:
        assert next(watch).to_seq == 2
        watch._flow._stream.close()  # as a network that fails would
        client.delete_topic(topic)
        client.write(topic, ["new 1", "new 2", "new 3"])
        found = []
        while len(found) < 4:
            event = watch.next_event(LIMIT_S)
            assert event is not None
            if isinstance(event, Tombstone):
                found.append("a gap")
            elif isinstance(event, Records):
                found += [record.data for record in event.records]
        assert found == ["a gap", "new 1", "new 2", "new 3"]
        assert watch.positions[topic].from_seq == 3
        watch._flow._stream.close()
        client.write(topic, ["new 4"])
        while not isinstance(event := watch.next_event(LIMIT_S), Records):
            assert isinstance(event, CaughtUp)
        assert [record.data for record in event.records] == ["new 4"]


def test_a_watch_of_a_server_that_hangs_keeps_to_its_callers_time_and_goes_on_after(
    server, client, topic
):
    client.write(topic, ["a", "b"])
    with client.watch(topic) as watch:
        server.terminate(signal.SIGSTOP)
        try:
            began_s = monotonic()
            assert watch.next_event(0.1) is None
            assert watch.next_event(0.1) is None
            assert monotonic() - began_s < client.settings.read_timeout_s / 2
        finally:
            server.terminate(signal.SIGCONT)
        assert [record.data for record in watch.next_event(LIMIT_S).records] == ["a", "b"]
        assert watch.reconnects == 0


def test_a_watch_by_prefix_is_joined_by_topics_made_later(client, topic):
    with client.watch(prefixes=[f"{topic}."]) as watch:
        assert watch.next_event(0.05) is None
        for name in "ab":
            client.write(f"{topic}.{name}", [name])
        found = []
        while len(found) < 2:
            event = watch.next_event(20)
            if isinstance(event, Records):
                found += [(event.topic, record.data) for record in event.records]
    assert sorted(found) == [(f"{topic}.a", "a"), (f"{topic}.b", "b")]


def test_a_topic_that_joined_a_watch_and_was_made_anew_is_read_from_its_start(client, topic):
    name = f"{topic}.new"
    with client.watch(prefixes=[f"{topic}."]) as watch:
        client.write(name, ["old 1", "old 2", "old 3"])
        while not isinstance(watch.next_event(20), CaughtUp):
            pass
        positions = watch.positions
    assert positions[name].epoch is not None
    client.delete_topic(name)
    client.write(name, [f"new {number}" for number in range(1, 6)])
    found = []
    with client.watch(positions) as watch:
        while len(found) < 5:
            event = watch.next_event(20)
            if isinstance(event, Records):
                found += [record.data for record in event.records]
    assert found == [f"new {number}" for number in range(1, 6)]


def test_probes_metrics_and_the_scheduler(client, topic):
    client.put_topic(topic)
    assert client.health().status == "ok"
    assert client.ready().topics >= 1
    assert client.metrics()["topics"] >= 1
    assert isinstance(client.scheduler(), dict)


def test_several_topics_in_one_request(client, topic):
    written = client.write_many({topic: [1, 2]})
    assert [(one.topic, one.count) for one in written] == [(topic, 2)]


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_async_client_does_the_same(server, topic, run_loop):
    async def run() -> None:
        async with AsyncClient(url_of(server)) as client:
            await client.put_topic(topic, type="queue")
            async with client.writer(topic) as writer:
                for n in range(100):
                    await writer.send(n)
            done = []
            async with client.work(topic, "me", count=10) as work:
                async for job in work:
                    async with job:
                        done.append(job.data)
                    if len(done) == 100:
                        break
            assert sorted(done) == list(range(100))
            assert [row.topic async for row in client.list_topics(topic)] == [topic]
            pages = [page async for page in client.read(topic)]
            assert pages[-1].caught_up
            async with client.watch(topic, tail=True) as watch:
                assert isinstance(await anext(watch), CaughtUp)

    run_loop(asyncio.wait_for(run(), LIMIT_S))


def test_bodies_travel_compressed(server, topic):
    with Client(ClientSettings(url_of(server), gzip=True, gzip_bytes_min=100)) as client:
        client.write(topic, ["x" * 1_000] * 50)
        assert len(client.diff(topic).records) == 50


def test_a_token_is_needed_where_there_are_keys(tmp_path: Path):
    server = ServerProcess(tmp_path, API_KEYS="secret:rw:ours")
    try:
        server.start()
        with Client(url_of(server), api_key="secret") as client:
            assert client.write("ours.a", [1]).count == 1
        with Client(url_of(server)) as client, pytest.raises(Unauthorized):
            client.write("ours.a", [1])
    finally:
        server.close()


@pytest.mark.parametrize("face", FACES, ids=named)
def test_a_server_with_tls_is_trusted_only_by_its_certificate(tmp_path: Path, face, certificate):
    cert, key = certificate
    server = ServerProcess(tmp_path, TLS_CERT=cert, TLS_KEY=key)
    try:
        server.launch()
        url = url_of(server).replace("http:", "https:")
        settings = ClientSettings(url, ca_file=str(cert))
        assert face.call(settings, "write", "a", range(10)).count == 10
        events, _ = face.watched(settings, 1, "a")
        assert events[0].to_seq == 10
        with pytest.raises(Untrusted, match=r"certificate of .* is not trusted"):
            face.call(ClientSettings(url), "get_topic", "a")
    finally:
        server.close()
