"""What the sampler counts, how much memory it takes, and the route that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO

import pyarrow as pa
import pytest

from penstock.flow.governor import Level
from penstock.flow.priority import TOPIC_BANDS
from penstock.kernel.units import MIB
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.history import BANDS, SERIES, History, parse_series
from penstock.protocol.routes import ARROW
from tests.unit.server.fakes import Client, serving
from tests.waiting import until


def on(test: Callable[[Client], Awaitable[None]], **options: object) -> None:
    async def scenario() -> None:
        async with serving(**options) as client:
            client.application.context.sampler.stop()
            await test(client)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def last(client: Client) -> dict[str, float | None]:
    """A new sample, by name."""
    sampler = client.application.context.sampler
    sampler.sample(0.0)
    found = sampler.history([series.name for series in SERIES], "1s", 0)
    return {name: values[-1] for name, values in found.columns.items()}


def test_writes_commits_and_pushes_are_counted_and_nothing_is_none() -> None:
    async def test(client: Client) -> None:
        # Synced at once, so that no timed sync is counted later.
        await client.write("t", 1, config={"durability": "fsync"})
        stream, _ = await client.watch(topics={"t": {"from_seq": 0}})
        await until(lambda: len(stream.events()) >= 2)
        first = last(client)
        assert first["in"]
        assert first["in_bytes"]
        assert first["commits"]
        assert first["pushed"]
        assert first["commit_p50_ms"] is not None
        assert first["streams"] == 1
        quiet = last(client)
        assert quiet["in"] == quiet["pushed"] == quiet["commits"] == quiet["refused"] == 0
        assert quiet["commit_p99_ms"] is quiet["push_p50_ms"] is quiet["fsync_p50_ms"] is None
        await client.write("t", 2)
        await until(lambda: len(stream.events()) >= 4)
        pushed = last(client)
        assert pushed["pushed"]
        assert pushed["push_p99_ms"] is not None

    on(test)


def test_topics_of_the_server_itself_and_copies_of_routers_are_not_input() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
        totals = client.engine.registry.totals
        await client.write("penstock.events", 1)
        assert totals.in_records == 0
        await client.write("a", 1)
        await client.ask("GET", "/v0/topics/b")
        assert client.engine.topic("b").count == 1
        assert totals.in_records == 1

    on(test)


def test_a_watcher_that_does_not_read_is_behind_until_it_reads_or_leaves() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        stream, _ = await client.watch(room=1, topics={"t": {"from_seq": 0}})
        await until(lambda: client.engine.watchers.slow == 1)
        assert last(client)["watchers_behind"] == 1
        stream.read(None)
        assert last(client)["watchers_behind"] == 0
        other, _ = await client.watch(room=1, topics={"t": {"from_seq": 0}})
        await until(lambda: client.engine.watchers.slow == 1)
        assert other.on_gone is not None
        other.on_gone()
        assert client.engine.watchers.slow == 0

    on(test)


def test_a_full_topic_counts_as_refused_and_a_missing_one_does_not() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/t", {"cap_records": 1, "discard": "reject"})
        await client.write("t", 1)
        assert (await client.write("t", 2)).status == 422
        assert client.engine.admission.refused == 1
        assert (await client.write("u", 2, create=False)).status == 404
        writes = {"writes": [{"topic": "t", "records": [{"data": 3}]}]}
        assert (await client.ask("POST", "/v0/write", writes)).status == 422
        assert client.engine.admission.refused == 2
        assert last(client)["refused"]

    on(test)


def test_pressure_shows_with_its_rung() -> None:
    async def test(client: Client) -> None:
        client.engine.turns.force_pressure(0.7)
        found = last(client)
        assert found["pressure"] == 0.7
        assert found["rung"] == Level.WIDEN
        assert found["coalesce_ms"] == client.engine.turns.rung.coalesce_ms
        assert found["commit_window_ms"] == client.engine.turns.rung.commit_window_ms

    on(test)


def test_every_band_has_its_series_and_memory_stays_below_its_limit() -> None:
    assert len(TOPIC_BANDS.weights) == BANDS

    async def test(client: Client) -> None:
        assert len(client.application.context.sampler._row([0.0] * 5, 0.0)) == len(SERIES)
        assert client.application.context.sampler.size_bytes < 2 * MIB

    on(test)


def test_the_sampler_runs_by_itself_from_open_to_drain() -> None:
    async def scenario() -> None:
        async with serving() as client:
            sampler = client.application.context.sampler
            await until(lambda: len(sampler.history(["in"], "1s", 0).t) >= 2)
            client.application.drain()
            assert sampler._timer is None

    asyncio.run(scenario())


def test_history_as_json_and_as_arrow() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        last(client)
        last(client)
        found = (await client.ask("GET", "/v0/history?series=in,commit_p50_ms")).json
        assert set(found) == {"step", "t", "in", "commit_p50_ms", "performance"}
        assert found["step"] == "1s"
        assert found["in"][0] > found["in"][1] == 0
        assert found["commit_p50_ms"][1] is None
        later = (await client.ask("GET", f"/v0/history?series=in&since={found['t'][0]}")).json
        assert later["t"] == found["t"][1:]
        answer = await client.ask("GET", "/v0/history?series=in,refused", accept=ARROW)
        table = pa.ipc.open_stream(BytesIO(answer.body)).read_all()
        assert table.column_names == ["t", "in", "refused"]
        assert table.column("in").to_pylist() == found["in"]
        assert table.schema.metadata == {b"step": b"1s"}
        by_minute = (await client.ask("GET", "/v0/history?step=1m&series=in")).json
        assert {"t", "in", "in_min", "in_max"} < set(by_minute)

    on(test)


def test_an_unknown_series_or_step_is_refused_with_what_to_use() -> None:
    async def test(client: Client) -> None:
        refused = await client.ask("GET", "/v0/history?series=comits")
        assert (refused.status, refused.code) == (400, "invalid_request")
        assert "did you mean commits?" in refused.json["error"]["message"]
        refused = await client.ask("GET", "/v0/history?step=5s")
        assert refused.status == 400

    on(test)


def test_history_needs_the_scope_read() -> None:
    async def test(client: Client) -> None:
        refused = await client.ask("GET", "/v0/history", authorization="Bearer w")
        assert refused.status == 403
        assert (await client.ask("GET", "/v0/history", authorization="Bearer r")).status == 200

    on(test, keys="r:read,w:write")


def test_members_and_their_reverse() -> None:
    history = History("1s", [1, 2], {"in": [0.5, None]})
    assert History.of({**history.members(), "performance": {"server_total_ms": 1.0}}) == history
    assert parse_series("in,in,refused") == ["in", "refused"]
    assert parse_series("") == [series.name for series in SERIES]
    with pytest.raises(InvalidRequest, match="use in, in_bytes"):
        parse_series("zzz")
