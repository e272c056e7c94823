"""Real load until the governor climbs: what is told is true, and in the end everything is there."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.flow import governor
from tests.conformance.servers import ServerProcess
from tests.conformance.streams import EventStream
from tests.conformance.wire import Address, Answer, Api, at, at_once, done, until
from tests.integration.server.hostile import assert_envelope

LOADERS = 3
LOAD_S = 30.0
"""The longest load; it ends when it was noticed and looked at for a while."""
VIEWS_UNDER_LOAD = 100
ROUNDED = 0.001
"""The pressure is told with so much left out."""


def load(address: Address, name: str, enough: str, report: str) -> None:
    """Write as fast as it goes until it is enough; leave behind what was answered and refused."""
    api = Api(address)
    link = api.connect()
    written, refused, retry = 0, 0, True
    records = [{"data": [name, number]} for number in range(40)]
    end = time.monotonic() + LOAD_S
    while time.monotonic() < end and not Path(enough).exists():
        answer = api.exchange(link, "POST", at(f"load-{name}"), {"records": records})
        if answer.status in (200, 201):
            written += len(records)
        else:
            assert answer.status == 429, str(answer)
            assert_envelope(answer.json)
            detail = answer.json["error"]["detail"]
            retry = (
                retry and detail["retry_after_ms"] > 0 and int(answer.headers["retry-after"]) > 0
            )
            refused += 1
    link.close()
    Path(report).write_text(f"{written} {refused} {int(retry)}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    try:
        yield process.start()
    finally:
        process.close()


def test_under_real_load_the_scheduler_tells_the_truth_and_all_is_delivered(server, tmp_path):
    api = Api(server.address)
    names = [str(number) for number in range(LOADERS)]
    for name in names:
        api.make(f"load-{name}")
        api.route(f"route-{name}", f"load-{name}", f"copy-{name}")
    with ExitStack() as stack:
        streams = [
            stack.enter_context(EventStream(api.address, api.watch(f"load-{name}", limit=1_000)))
            for name in names
        ]
        _load_and_read(api, names, streams, tmp_path)


def _load_and_read(api: Api, names: list[str], streams: list[EventStream], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    reports = [tmp_path / f"report-{name}" for name in names]
    enough = tmp_path / "enough"
    loaders = [
        context.Process(target=load, args=(api.address, name, str(enough), str(report)))
        for name, report in zip(names, reports, strict=True)
    ]
    for loader in loaders:
        loader.start()
    views = []
    noticed = 0
    try:
        while any(loader.is_alive() for loader in loaders):
            view = done(api.get("/v0/scheduler", topic="load-0"))
            _check_view(view)
            views.append(view)
            noticed += view["rung"] != "steady"
            if noticed == VIEWS_UNDER_LOAD:
                enough.touch()
    finally:
        for loader in loaders:
            loader.join(60)
    assert [loader.exitcode for loader in loaders] == [0] * LOADERS
    rungs = {view["rung"] for view in views}
    assert rungs - {"steady"}, "the load was never noticed"

    counts = [[int(word) for word in report.read_text().split()] for report in reports]
    for name, stream, (written, _, retry) in zip(names, streams, counts, strict=True):
        assert retry, "a refusal came without the time to wait"
        seqs: list[int] = []
        while len(seqs) < written:
            frame = stream.next(deadline_s=60)
            assert frame.event in ("record", "caught-up"), frame.lines[:2]
            if frame.event == "record":
                seqs += [record["$seq"] for record in frame.data["records"]]
        assert seqs == list(range(1, written + 1)), "every record once, in order"
        state = api.state(f"load-{name}")
        assert state["head_seq"] == written, "what was refused was not appended"
        assert api.state(f"copy-{name}")["count"] == written

    def calm() -> bool:
        view = done(api.get("/v0/scheduler"))
        return view["rung"] == views[0]["rung"] and not view["refusing"] and not view["waiting"]

    until(calm, "the load to be over", 60)


def test_a_full_log_queue_refuses_before_anything_is_appended(tmp_path):
    """Writers that outrun the log: each write is taken wholly, or refused with a time to wait."""
    server = ServerProcess(tmp_path, MAX_WAITING_BYTES=150_000)
    try:
        api = Api(server.start().address)
        api.make("t", durability="fsync")
        answers: list[Answer] = []

        def outrun() -> bool:
            body = {"records": [{"data": "x" * 100_000}] * 2}
            calls = [lambda: api.post(at("t"), body)] * 12
            answers.extend(at_once(calls))
            return any(answer.status == 429 for answer in answers)

        until(outrun, "a refusal", 60)
        taken = [answer for answer in answers if answer.status == 200]
        for answer in answers:
            if answer.status != 200:
                assert answer.status == 429, str(answer)
                assert_envelope(answer.json)
                assert answer.json["error"]["code"] == "throttled"
                assert answer.json["error"]["detail"]["retry_after_ms"] > 0
                assert answer.json["error"]["detail"]["limit"] == "max_waiting_bytes"
                assert "disable_backpressure does not lift" in answer.json["error"]["message"]
                assert int(answer.headers["retry-after"]) >= 1
        assert taken, "nobody was served at all"
        assert api.state("t")["head_seq"] == 2 * len(taken)
        firsts = sorted(answer.json["first_seq"] for answer in taken)
        assert firsts == list(range(1, 2 * len(taken), 2))
        metrics = done(api.get("/v0/metrics", {"Accept": "application/json"}))
        assert metrics["wal"]["submit_full_total"] > 0
        assert api.write("t", "afterwards")["first_seq"] == 2 * len(taken) + 1
    finally:
        server.close()


def _check_view(view: dict) -> None:
    """What the scheduler tells agrees with its published ladder, and with itself."""
    pressure = view["pressure"]
    assert 0 <= pressure <= 1
    if abs(pressure - governor.COALESCE_ABOVE) > ROUNDED:
        assert (view["coalesce_ms"] > 0) == (pressure > governor.COALESCE_ABOVE)
    if abs(pressure - governor.WIDEN_ABOVE) > ROUNDED:
        is_wide = view["commit_window_ms"] > governor.COMMIT_WINDOW_MS_MIN
        assert is_wide == (pressure > governor.WIDEN_ABOVE)
    if view["refusing"]:
        assert view["rung"] == "refuse"
    if pressure < governor.RELEASE_BELOW - ROUNDED:
        assert not view["deferring"]
    assert sum(band["depth"] for band in view["bands"]) <= view["waiting"]
    assert view["latency_us"]["p50"] <= view["latency_us"]["p99"]
    topic = view["topic"]
    assert topic["topic"] == "load-0"
    assert topic["reason"]
    assert [router["router"] for router in topic["routers"]] == ["route-0"]
    assert topic["watchers"] == 1
