"""The whole server in this process: its start, its end, and what lies between."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.app.server import Server, describe, origins_of
from penstock.config import Settings
from penstock.kernel.errors import Rejected


async def ask(server: Server, method: str, path: str, body: object = None) -> tuple[int, dict]:
    """One request over a connection of its own."""
    host, port = server.address
    reader, writer = await asyncio.open_connection(host, port)
    raw = b"" if body is None else json.dumps(body).encode()
    kind = b"" if body is None else b"Content-Type: application/json\r\n"
    writer.write(
        b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n%b"
        % (method.encode(), path.encode(), kind, len(raw), raw)
    )
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, told = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(told)


def settings(path: Path, **more: object) -> Settings:
    return Settings(port=0, data_dir=path / "data", drain_ms=2_000, **more)


def test_before_the_log_is_open_health_answers_and_nothing_else(tmp_path):
    async def go():
        server = Server(settings(tmp_path, port_file=tmp_path / "port"))
        host, port = await server.listen()
        assert (await ask(server, "GET", "/healthz"))[0] == 200
        for method, path in (("GET", "/readyz"), ("POST", "/v0/topics/t"), ("GET", "/v0/topics")):
            status, told = await ask(server, method, path)
            assert (status, told["error"]["code"]) == (503, "not_ready")
        assert (await ask(server, "GET", "/nothing"))[0] == 404
        assert not (tmp_path / "port").exists(), "the log may be another's"
        await server.open()
        assert (tmp_path / "port").read_text() == f"{host}:{port}\n"
        assert (await ask(server, "GET", "/readyz"))[1]["status"] == "ready"
        await server.close()

    asyncio.run(go())


def test_what_was_written_is_there_after_a_restart_and_progress_is_told(tmp_path):
    async def first():
        server = Server(settings(tmp_path))
        await server.listen()
        await server.open()
        for number in range(5):
            body = {"records": [{"data": number}], "idempotency_key": f"k{number}"}
            status, _ = await ask(server, "POST", "/v0/topics/t", body)
            assert status == (201 if number == 0 else 200)
        await server.close()

    async def second():
        server = Server(settings(tmp_path))
        await server.listen()
        told: list[float] = []
        await server.open(told.append)
        assert told[-1] == 1.0
        _, page = await ask(server, "POST", "/v0/topics/t/diff", {})
        assert [record["data"] for record in page["records"]] == [0, 1, 2, 3, 4]
        body = {"records": [{"data": 4}], "idempotency_key": "k4"}
        assert (await ask(server, "POST", "/v0/topics/t", body))[1]["deduped"] is True
        await server.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_server_that_is_ended_while_it_replays_leaves_in_good_order(tmp_path):
    async def fill():
        server = Server(settings(tmp_path))
        await server.listen()
        await server.open()
        for _ in range(20):
            body = {"records": [{"data": number} for number in range(1_000)]}
            await ask(server, "POST", "/v0/topics/t", body)
        await server.close()

    async def interrupt():
        server = Server(settings(tmp_path))
        await server.listen()
        opening = asyncio.ensure_future(server.open())
        while server.engine is None:
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await server.close()

    async def check():
        server = Server(settings(tmp_path))
        await server.listen()
        await server.open()
        assert (await ask(server, "GET", "/v0/topics/t"))[1]["count"] == 20_000
        await server.close()

    asyncio.run(fill())
    asyncio.run(interrupt())
    asyncio.run(check())


def test_the_port_file_is_there_while_the_log_is_replayed(tmp_path):
    async def go():
        server = Server(settings(tmp_path, port_file=tmp_path / "port"))
        await server.listen()
        opening = asyncio.ensure_future(server.open())
        while server.engine is None:
            await asyncio.sleep(0)
        assert (tmp_path / "port").exists()
        assert (await ask(server, "GET", "/healthz"))[0] == 200
        await opening
        await server.close()

    asyncio.run(go())


def test_an_end_in_a_hurry_waits_for_nobody(tmp_path):
    async def go():
        server = Server(Settings(port=0, data_dir=tmp_path / "data", drain_ms=600_000))
        host, port = await server.listen()
        await server.open()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert (await ask(server, "GET", "/healthz"))[0] == 200
        server.hurry()
        await asyncio.wait_for(server.close(), 30)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    asyncio.run(go())


def test_a_worker_that_is_cut_off_by_the_end_gives_its_jobs_back(tmp_path):
    async def go():
        server = Server(settings(tmp_path))
        host, port = await server.listen()
        await server.open()
        await ask(server, "PUT", "/v0/topics/q", {"type": "queue", "leases_durable": True})
        await ask(server, "POST", "/v0/topics/q", {"records": [{"data": 1}]})
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /v0/topics/q/work?node=n HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"event: job")
        await server.close()
        assert b"server_shutting_down" in await reader.read()
        writer.close()
        again = Server(settings(tmp_path))
        await again.listen()
        await again.open()
        _, told = await ask(again, "GET", "/v0/topics/q")
        assert told["queue"] == {"ready": 1, "in_flight": 0, "dead_lettered": 0}
        await again.close()

    asyncio.run(go())


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_other_stores_serve_as_well(tmp_path, store):
    async def go():
        server = Server(settings(tmp_path, store=store))
        await server.listen()
        await server.open()
        status, _ = await ask(server, "POST", "/v0/topics/t", {"records": [{"data": 1}]})
        assert status == 201
        await server.close()

    asyncio.run(go())


def test_an_address_or_a_directory_that_cannot_be_had_is_told(tmp_path):
    async def go():
        server = Server(settings(tmp_path))
        _, port = await server.listen()
        other = Server(Settings(port=port, data_dir=tmp_path / "other"))
        with pytest.raises(Rejected, match="cannot listen on"):
            await other.listen()
        (tmp_path / "data").write_text("a file")
        with pytest.raises(Rejected, match="directory"):
            await server.open()
        await server.close()

    asyncio.run(go())


@pytest.mark.parametrize("store", ["segment", "sqlite"])
def test_a_port_file_that_cannot_be_written_is_told_and_the_log_let_go(tmp_path, store):
    async def go():
        server = Server(settings(tmp_path, store=store, port_file=tmp_path / "absent" / "port"))
        await server.listen()
        with pytest.raises(Rejected, match="cannot write the port file"):
            await server.open()
        await server.close()
        again = Server(settings(tmp_path, store=store))
        await again.listen()
        await again.open()
        await again.close()

    asyncio.run(go())


def test_the_first_line_says_where_what_and_who(tmp_path):
    server = Server(Settings(api_keys="a,b", data_dir=Path("d")))
    line = describe(server.settings, "::1", 4000, server.keys)
    assert "http://[::1]:4000" in line
    assert "data in d (segment)" in line
    assert "auth on: 2 keys" in line


@pytest.mark.parametrize(("hosts", "said"), [((), True), (("t.example",), False)])
def test_the_first_line_of_a_server_on_all_addresses_says_under_which_it_answers(hosts, said):
    chosen = Settings(host="0.0.0.0", allow_insecure_no_auth=True, allowed_hosts=hosts)
    assert ("--allowed-host" in describe(chosen, "0.0.0.0", 4000, None)) == said


def test_the_address_that_a_server_listens_on_is_one_that_it_answers_to(tmp_path):
    """Without keys too: it is the one that the server tells."""
    chosen = Settings(host="10.1.2.3", allow_insecure_no_auth=True, data_dir=tmp_path)
    policy = origins_of(chosen)
    assert policy.sender({"host": "10.1.2.3:4000"}).foreign_host is None
    assert policy.sender({"host": "10.1.2.4:4000"}).foreign_host is not None


def test_cold_records_are_read_and_pushed_like_any_other(tmp_path):
    async def go():
        cold = {"segment_max_events": 50, "hot_retain_segments": 1}
        server = Server(settings(tmp_path, **cold))
        await server.listen()
        await server.open()
        for first in range(0, 1_000, 100):
            body = {"records": [{"data": number} for number in range(first, first + 100)]}
            await ask(server, "POST", "/v0/topics/t", body)
        assert server.engine is not None
        assert server.engine.snapshotter is not None
        await server.engine.snapshotter.compact()
        await server.close()
        again = Server(settings(tmp_path, **cold))
        host, port = await again.listen()
        await again.open()
        read: list[int] = []
        cold_segments, place, caught_up = 0, 0, False
        while not caught_up:
            asked = {"from_seq": place, "limit": 1_000}
            _, page = await ask(again, "POST", "/v0/topics/t/diff", asked)
            read += [record["data"] for record in page["records"]]
            cold_segments += page["performance"].get("cold_segments_read", 0)
            place, caught_up = page["next_from_seq"], page["caught_up"]
        assert read == list(range(1_000))
        assert cold_segments > 0
        _, session = await ask(again, "POST", "/v0/watch", {"topics": {"t": {}}, "limit": 1_000})
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % session["stream_url"].encode())
        text = await asyncio.wait_for(reader.readuntil(b"event: caught-up"), 10)
        pushed = [
            record["data"]
            for line in text.split(b"\n")
            if line.startswith(b'data: {"topic":"t","from_seq"')
            for record in json.loads(line[6:])["records"]
        ]
        assert pushed == list(range(1_000))
        writer.close()
        await again.close()

    asyncio.run(go())
