"""1.6 GET …/work: a stream of jobs."""

from __future__ import annotations

import contextlib
import re

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import at, done, until

JOB = {"topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}


@pytest.fixture
def work(api):
    """Opens work streams and closes them after the test."""
    opened = []

    def open_stream(queue, query="node=w1", **options):
        opened.append(EventStream(api.address, f"{at(queue, 'work')}?{query}", **options))
        return opened[-1]

    yield open_stream
    for each in opened:
        each.close()


@pytest.fixture
def queue(api, topic):
    api.make(topic, type="queue")
    return topic


def ack(api, queue, *seqs, node="w1"):
    return done(api.post(at(queue, "ack"), {"node": node, "seqs": list(seqs)}))


@row("1.6 work")
def test_a_job_comes_as_a_frame(api, queue, work):
    body = {"records": [{"data": {"a": 1}, "tag": "t", "node": "x", "meta": {"m": 2}}]}
    done(api.post(at(queue), body))
    stream = work(queue)
    assert stream.status == 200
    assert stream.headers["Content-Type"] == "text/event-stream"
    assert stream.frame().lines == ["retry: 2000"]
    frame = stream.frame()
    assert [line.split(" ")[0] for line in frame.lines] == ["id:", "event:", "data:"]
    assert (frame.id, frame.event) == ("1", "job")
    job = frame.data
    expect.keys(job, JOB | {"$tag", "meta"})
    assert (job["topic"], job["$seq"], job["deliveries"]) == (queue, 1, 1)
    assert (job["data"], job["$tag"], job["meta"]) == ({"a": 1}, "t", {"m": 2})
    assert re.fullmatch(r"lease_[0-9a-f]+", job["lease_id"])
    assert job["deadline"] > job["$ts"]


@row("1.6 work")
def test_a_bare_job_has_no_tag_and_no_meta(api, queue, work):
    api.write(queue, None)
    expect.keys(work(queue).next("job").data, JOB)


@row("1.6 work")
def test_a_job_that_is_written_later_is_pushed(api, queue, work):
    stream = work(queue)
    assert stream.frame().lines == ["retry: 2000"]
    api.write(queue, "late")
    assert stream.next("job").data["data"] == "late"


@row("1.6 work", "2 dead letter")
def test_a_worker_that_reads_slowly_gets_every_job_once(api, queue, work):
    api.put(at(queue), {"max_deliveries": 1, "dead_letter": f"{queue}-dead"})
    for number in range(40):
        api.write(queue, [number, "x" * 400_000])
    stream = work(queue, "node=w1&max=40")
    until(lambda: done(api.get(at(queue)))["queue"]["in_flight"], "jobs in its hands")
    jobs = [stream.next("job").data for _ in range(40)]
    assert [(job["data"][0], job["deliveries"]) for job in jobs] == [(n, 1) for n in range(40)]
    state = done(api.get(at(queue)))["queue"]
    assert state == {"ready": 0, "in_flight": 40, "dead_lettered": 0}


@row("1.6 work refill")
def test_a_stream_holds_one_job_until_it_is_acknowledged(api, queue, work):
    api.write(queue, *range(3))
    stream = work(queue)
    for seq in (1, 2, 3):
        job = stream.next("job").data
        assert job["$seq"] == seq
        assert api.state(queue)["queue"]["in_flight"] == 1
        ack(api, queue, seq)
    until(lambda: api.state(queue)["count"] == 0, "all done")


@row("1.6 work", "1.6 work refill")
def test_a_stream_holds_as_many_as_asked_for(api, queue, work):
    api.write(queue, *range(5))
    stream = work(queue, "node=w1&max=3")
    assert [stream.next("job").data["$seq"] for _ in range(3)] == [1, 2, 3]
    assert api.state(queue)["queue"] == {"ready": 2, "in_flight": 3, "dead_lettered": 0}
    ack(api, queue, 2, 3)
    assert [stream.next("job").data["$seq"] for _ in range(2)] == [4, 5]


@row("1.6 work")
@pytest.mark.parametrize("maximum", ["0", "x", "", "-3"])
def test_a_maximum_that_is_none_is_one(api, queue, work, maximum):
    api.write(queue, 1, 2)
    stream = work(queue, f"node=w1&max={maximum}")
    stream.next("job")
    assert api.state(queue)["queue"]["in_flight"] == 1


@row("1.6 work", "1.6 claim lease_ms")
def test_the_lease_of_a_stream(api, queue, work):
    api.write(queue, 1, 2)
    first = work(queue, "node=w1&lease_ms=3600000").next("job").data
    second = work(queue, "node=w2").next("job").data
    assert first["deadline"] - second["deadline"] > 3_000_000


@row("1.6 work", "1.6 claim lease_ms", "1.0 query numbers")
@pytest.mark.parametrize(
    ("asked", "given"), [("0", 100), ("1", 100), ("x", 3_600_000), ("", 3_600_000)]
)
def test_the_lease_of_a_stream_is_clamped_as_that_of_a_claim(api, queue, work, asked, given):
    api.make(queue, lease_ms=3_600_000)
    api.write(queue, 1, 2)
    [plain] = api.claim(queue, lease_ms=20_000)
    job = work(queue, f"node=w1&lease_ms={asked}").next("job").data
    assert abs((job["deadline"] - plain["deadline"]) - (given - 20_000)) < 10_000


@row("1.6 work disconnect")
def test_a_stream_that_goes_away_gives_its_jobs_back(api, queue, work):
    api.write(queue, 1, 2)
    stream = work(queue, "node=w1&max=2")
    stream.next("job")
    stream.next("job")
    stream.close()
    jobs = until(lambda: api.claim(queue, node="n2", max=2), "the jobs of the closed stream")
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 2)]


@row("1.6 work disconnect")
def test_one_stream_takes_over_from_another(api, queue, work):
    api.write(queue, "job")
    first = work(queue, "node=w1")
    first.next("job")
    second = work(queue, "node=w2")
    assert second.frame().lines == ["retry: 2000"]
    first.close()
    job = second.next("job").data
    assert (job["data"], job["deliveries"]) == ("job", 2)


@row("1.6 work")
def test_two_streams_never_get_the_same_job(api, queue, work):
    streams = {node: work(queue, f"node={node}") for node in ("w1", "w2")}
    api.write(queue, "a", "b")
    found = {streams[node].next("job").data["$seq"] for node in streams}
    assert found == {1, 2}


@row("1.6 work", "1.6 nack")
def test_a_job_that_is_given_back_comes_again(api, queue, work):
    api.write(queue, "again")
    stream = work(queue)
    stream.next("job")
    done(api.post(at(queue, "nack"), {"node": "w1", "seqs": [1]}))
    assert stream.next("job").data["deliveries"] == 2


@row("1.6 check order work", "1.6 common errors")
def test_the_order_of_the_checks(api, topic):
    path = at(topic, "work")
    html = {"Accept": "text/html"}
    expect.refusal(api.get(path, html), 406, "not_acceptable")
    expect.refusal(api.get(path), 400, "invalid_request")
    expect.refusal(api.get(path, node=""), 400, "invalid_request")
    expect.refusal(api.get(path, node="n" * 129), 400, "invalid_request")
    expect.refusal(api.get(path, node="w"), 404, "topic_not_found", {"topic": topic})
    api.make(topic)
    expect.refusal(api.get(path, node="w"), 409, "not_a_queue", {"topic": topic})
    expect.refusal(api.get(path), 400, "invalid_request")


@row("1.6 check order work")
@pytest.mark.parametrize("accept", [None, "*/*", "text/event-stream"])
def test_who_accepts_events_or_anything_gets_jobs(api, queue, work, accept):
    api.write(queue, 1)
    assert work(queue, accept=accept).next("job").data["$seq"] == 1


@row("1.6 work gone")
def test_a_queue_that_becomes_a_log_ends_the_stream(api, queue, work):
    stream = work(queue)
    assert stream.frame().lines == ["retry: 2000"]
    api.delete(at(queue))
    api.make(queue, type="log")
    frame = stream.next("error")
    expected = {"code": 409, "error": "topic is no longer a queue", "topic": queue}
    assert frame.data == expected
    assert stream.rest() == []


@row("1.6 work")
def test_the_dest_of_a_router_can_be_worked_on(api, queue, work, name):
    source = name()
    api.route(name(), source, queue)
    stream = work(queue)
    assert stream.frame().lines == ["retry: 2000"]
    api.write(source, "routed")
    assert stream.next("job").data["data"] == "routed"


@row("1.6 work", "2 lease expiry")
def test_a_job_whose_lease_runs_out_comes_again(api, queue, work):
    api.write(queue, "slow")
    stream = work(queue, "node=w1&lease_ms=100")
    first, second = stream.next("job").data, stream.next("job").data
    assert (first["deliveries"], second["deliveries"]) == (1, 2)
    assert first["lease_id"] != second["lease_id"]


@row("1.6 work", "2 dead letter")
def test_a_job_that_was_delivered_too_often_is_buried_and_the_stream_goes_on(
    api, queue, work, name
):
    grave = name()
    api.make(queue, max_deliveries=1, dead_letter=grave)
    api.write(queue, "bad", "good")
    stream = work(queue)
    stream.next("job")
    done(api.post(at(queue, "nack"), {"node": "w1", "seqs": [1]}))
    assert stream.next("job").data["data"] == "good"
    assert [record["data"] for record in api.diff(grave)["records"]] == ["bad"]


@row("1.6 work disconnect", "1.0 keep-alive")
def test_a_client_of_the_standard_library_that_closes_gives_its_jobs_back_at_once(api, name):
    """It keeps the socket open for an answer that ends with the connection, whatever it closes."""
    queue = name()
    api.make(queue, type="queue", lease_ms=600_000)
    api.write(queue, 1)
    connection = api.connect()
    connection.request("GET", at(queue, "work") + "?node=n")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Transfer-Encoding"]) == (200, "chunked")
    assert answer.headers["Connection"] != "close"
    assert answer.readline().startswith(b"retry:")
    until(lambda: api.get(at(queue)).json["queue"]["in_flight"] == 1, "the job is leased")
    connection.close()
    until(lambda: api.get(at(queue)).json["queue"]["in_flight"] == 0, "it is given back")


@row("1.4 topic-deleted", "1.0 keep-alive")
def test_the_connection_of_a_stream_that_ended_is_used_again(api, name):
    topic = name()
    api.write(topic, 1)
    connection = api.connect()
    with contextlib.closing(connection):
        connection.request("GET", api.watch(topic))
        answer = connection.getresponse()
        api.delete(at(topic))
        assert b"topic-deleted" in answer.read()
        socket = connection.sock
        assert api.exchange(connection, "GET", "/v0/topics").status == 200
        assert connection.sock is socket
