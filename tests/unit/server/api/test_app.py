from __future__ import annotations

import asyncio
import re

import pyarrow as pa
import pytest

from penstock.kernel.system import SystemClock
from tests.unit.server.fakes import run, serving
from tests.waiting import until

KEYS = "root,reader:read:a.,writer:write:a."


def test_the_usual_write_is_answered_with_its_place():
    async def go():
        async with serving() as client:
            first = await client.write("t", 1)
            assert (first.status, first.json["created"]) == (201, True)
            second = await client.write("t", 2)
            assert (second.status, second.json["seqs"], second.json["created"]) == (200, [2], False)
            short = await client.ask(
                "POST", "/v0/topics/t?return_seqs=false", {"records": [{"data": 3}]}
            )
            assert "seqs" not in short.json

    run(go)


def test_the_key_of_a_header_counts_only_if_the_body_has_none():
    async def go():
        async with serving() as client:
            body = {"records": [{"data": 1}]}
            for expected in (False, True):
                found = await client.ask("POST", "/v0/topics/t", body, idempotency_key="k")
                assert found.json["deduped"] is expected
            other = {**body, "idempotency_key": "other"}
            found = await client.ask("POST", "/v0/topics/t", other, idempotency_key="k")
            assert found.json["deduped"] is False
            long = await client.ask("POST", "/v0/topics/t", body, idempotency_key="k" * 257)
            assert (long.status, long.code) == (400, "invalid_request")

    run(go)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v0/nothing", 404, "not_found"),
        ("POST", "/v0/topics/", 404, "not_found"),
        ("PATCH", "/v0/topics/t", 405, "method_not_allowed"),
        ("POST", "/v0/topics/t", 415, "unsupported_media_type"),
        ("GET", "/v0/topics/t", 404, "topic_not_found"),
        ("GET", "/v0/routers/r", 404, "router_not_found"),
        ("GET", "/v0/watch/wid_x", 404, "not_found"),
        ("GET", "/v0/ws", 400, "invalid_request"),
        ("GET", "/v0/scheduler?topic=t", 404, "topic_not_found"),
        ("GET", "/v0/topics/t/work?node=n", 404, "topic_not_found"),
        ("GET", "/v0/topics/t/work", 400, "invalid_request"),
        ("GET", "/v0/topics?cursor=x", 400, "invalid_request"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_shape(method, path, status, code):
    async def go():
        async with serving() as client:
            found = await client.ask(method, path)
            assert (found.status, found.code) == (status, code)
            assert client.application.context.caps.streams == 0

    run(go)


def test_without_a_key_even_unknown_paths_are_unauthorized():
    async def go():
        async with serving(keys=KEYS) as client:
            for path in ("/v0/topics/a.t", "/v0/nothing", "/v0/metrics", "/v0/ws", "/v0/watch"):
                found = await client.ask("GET", path)
                assert (found.status, found.code) == (401, "unauthorized"), path
            assert (await client.ask("GET", "/healthz")).status == 200
            assert (await client.ask("GET", "/v0/watch/wid_x")).status == 404

    run(go)


def test_a_key_is_held_to_its_scopes_and_prefixes():
    async def go():
        async with serving(keys=KEYS) as client:
            root, reader = "Bearer root", "Bearer reader"
            writer = "Bearer writer"
            body = {"records": [{"data": 1}]}
            for topic in ("a.t", "b.t"):
                await client.ask("PUT", f"/v0/topics/{topic}", authorization=root)
            refused = [
                ("POST", "/v0/topics/a.t", body, reader),
                ("GET", "/v0/topics/a.t", None, writer),
                ("POST", "/v0/topics/b.t", body, writer),
                ("GET", "/v0/topics/b.t", None, reader),
                ("PUT", "/v0/topics/a.t", None, writer),
                ("POST", "/v0/topics/a.new", {**body, "config": {}}, writer),
                ("POST", "/v0/write", {"writes": [{"topic": "b.t", **body}]}, writer),
                ("POST", "/v0/watch", {"topics": {"a.t": {}, "b.t": {}}}, reader),
                ("GET", "/v0/scheduler?topic=b.t", None, reader),
            ]
            for method, path, sent, key in refused:
                found = await client.ask(method, path, sent, authorization=key)
                assert (found.status, found.code) == (403, "forbidden"), path
            listed = await client.ask("GET", "/v0/topics", authorization=reader)
            assert [row["topic"] for row in listed.json["topics"]] == ["a.t"]
            config = {**body, "config": {"ttl_ms": 1}}
            found = await client.ask("POST", "/v0/topics/a.t", config, authorization=writer)
            assert found.status == 200, "a config matters only to a new topic"

    run(go)


def test_a_stream_belongs_to_the_key_that_began_it():
    async def go():
        async with serving(keys=KEYS) as client:
            await client.ask("PUT", "/v0/topics/a.t", authorization="Bearer root")
            body = {"topics": {"a.t": {}}}
            made = await client.ask("POST", "/v0/watch", body, authorization="Bearer reader")
            url = made.json["stream_url"]
            for other in ({}, {"authorization": "Bearer root"}):
                found = await client.ask("GET", url, **other)
                assert (found.status, found.code) == (401, "unauthorized")
            assert client.start("GET", f"{url}?token=reader").live is not None
            assert client.start("GET", url, authorization="Bearer reader").live is not None

    run(go)


def test_requests_in_flight_are_counted_for_each_key():
    async def go():
        async with serving(keys="k", inflight_per_key_max=1) as client:
            key = "Bearer k"
            body = {"records": [{"data": 1}]}
            await client.ask("POST", "/v0/topics/t", body, authorization=key)
            waiting = client.start(
                "POST", "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 30_000}, authorization=key
            )
            refused = await client.ask("GET", "/v0/topics/t", authorization=key)
            assert (refused.status, refused.json["error"]["detail"]) == (
                429,
                {"limit": "max_inflight_per_key"},
            )
            await until(lambda: waiting.on_gone is not None)
            waiting.on_gone()
            await until(lambda: not client.application.context.parked)
            await until(lambda: waiting.status is not None)
            assert (await client.ask("GET", "/v0/topics/t", authorization=key)).status == 200
            for _ in range(3):
                again = await client.ask("POST", "/v0/topics/t", body, authorization=key)
                assert again.status == 200, "an answered write is in flight no more"

    run(go)


def test_before_the_log_is_replayed_only_health_is_well():
    async def go():
        async with serving(opened=False) as client:
            assert (await client.ask("GET", "/healthz")).status == 200
            for method, path in (("GET", "/readyz"), ("POST", "/v0/topics/t"), ("GET", "/v0/ws")):
                found = await client.ask(method, path, {"records": [{"data": 1}]})
                assert (found.status, found.code) == (503, "not_ready")
                assert 0 <= found.json["error"]["detail"]["replay_progress"] <= 1
                assert found.headers[b"retry-after"] == b"1"
            assert b"topics_ready 0" in (await client.ask("GET", "/v0/metrics")).body

    run(go)


def test_at_the_end_nothing_new_is_taken_and_those_who_wait_are_answered():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            stream, _ = await client.watch(topics={"t": {}})
            socket = await client.socket()
            parked = client.start("POST", "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 30_000})
            await until(lambda: client.application.context.parked)
            client.application.drain()
            await until(lambda: parked.status is not None)
            assert (parked.status, parked.code) == (503, "shutting_down")
            assert (await client.write("t", 2)).code == "shutting_down"
            assert stream.events()[-1] == (
                "error",
                {
                    "code": "server_shutting_down",
                    "message": "the server is shutting down; connect again",
                },
            )
            assert stream.closed
            assert socket.messages[-1]["code"] == "server_shutting_down"
            assert socket.closed
            assert client.application.context.caps.streams == 0

    run(go)


def test_several_topics_of_one_partition_are_written_in_one_commit():
    async def go():
        async with serving() as client:
            near = [f"t{number}" for number in range(64)]
            by_partition: dict[int, list[str]] = {}
            for name in near:
                by_partition.setdefault(client.engine.writer(name).number, []).append(name)
            (first, second, *_), (far, *_) = by_partition.values()
            record = {"records": [{"data": 1}]}
            found = await client.ask(
                "POST", "/v0/write", {"writes": [{"topic": n, **record} for n in (first, second)]}
            )
            assert (found.status, [row["first_seq"] for row in found.json["writes"]]) == (
                201,
                [1, 1],
            )
            refused = await client.ask(
                "POST", "/v0/write", {"writes": [{"topic": n, **record} for n in (first, far)]}
            )
            assert refused.status == 409
            assert refused.json["error"]["detail"] == {"topic": far, "reason": "topics_apart"}
            twice = {"writes": [{"topic": first, **record}] * 2}
            assert (await client.ask("POST", "/v0/write", twice)).status == 400
            for bad in ({"writes": []}, {}, {"writes": [{"records": []}]}, []):
                assert (await client.ask("POST", "/v0/write", bad)).status == 400

    run(go)


def test_a_write_of_several_topics_changes_nothing_if_one_is_refused():
    async def go():
        async with serving() as client:
            names = [f"t{number}" for number in range(64)]
            same = [n for n in names if client.engine.writer(n) is client.engine.writer(names[0])]
            config = {"cap_records": 1, "discard": "reject"}
            await client.ask("PUT", f"/v0/topics/{same[1]}", config)
            await client.write(same[1], "full")
            record = {"records": [{"data": 1}]}
            body = {"writes": [{"topic": same[0], **record}, {"topic": same[1], **record}]}
            assert (await client.ask("POST", "/v0/write", body)).code == "topic_full"
            assert (await client.ask("GET", f"/v0/topics/{same[0]}")).status == 404

    run(go)


def test_the_key_of_a_header_counts_for_every_write_of_a_request_that_has_none():
    async def go():
        async with serving() as client:
            names = [f"t{number}" for number in range(64)]
            same = [n for n in names if client.engine.writer(n) is client.engine.writer(names[0])][
                :2
            ]
            writes = [{"topic": n, "records": [{"data": 1}]} for n in same]
            writes[1]["idempotency_key"] = "own"

            async def deduped(key):
                found = await client.ask("POST", "/v0/write", {"writes": writes}, **key)
                return [row["deduped"] for row in found.json["writes"]]

            key = {"idempotency_key": "é".encode().decode("latin-1")}
            assert await deduped(key) == [False, False]
            assert await deduped(key) == [True, True]
            assert await deduped({"idempotency_key": "other"}) == [False, True]
            assert await deduped({"idempotency_key": ""}) == [False, True]
            assert await deduped({}) == [False, True]
            alone = {"records": [{"data": 1}], "idempotency_key": "é"}
            found = await client.ask("POST", f"/v0/topics/{same[0]}", alone)
            assert found.json["deduped"]
            long = {"idempotency_key": "k" * 257}
            refused = await client.ask("POST", "/v0/write", {"writes": writes}, **long)
            assert (refused.status, refused.code) == (400, "invalid_request")

    run(go)


def test_a_page_as_arrow_says_what_the_json_page_says():
    async def go():
        async with serving() as client:
            body = {"records": [{"data": {"a": [1]}, "tag": "x", "node": "n"}, {"data": None}]}
            await client.ask("POST", "/v0/topics/t", body)
            arrow = "application/vnd.apache.arrow.stream"
            asked = {"include_tags": True}
            found = await client.ask("POST", "/v0/topics/t/diff", asked, accept=arrow)
            plain = (await client.ask("POST", "/v0/topics/t/diff", asked)).json
            assert found.content_type == arrow.encode()
            table = pa.ipc.open_stream(found.body).read_all()
            assert table.column("seq").to_pylist() == [r["$seq"] for r in plain["records"]]
            assert table.column("data").to_pylist() == ['{"a": [1]}', "null"]
            assert table.column("tag").to_pylist() == ["x", None]
            assert table.column("node").to_pylist() == ["n", None]
            assert table.schema.metadata[b"next_from_seq"] == b"2"
            assert found.headers[b"x-penstock-caught-up"] == b"true"

    run(go)


def test_a_read_may_begin_at_a_time():
    async def go():
        async with serving() as client:
            for payload in (1, 2):
                await client.write("t", payload)
                await asyncio.sleep(0.003)
            records = (await client.ask("POST", "/v0/topics/t/diff")).json["records"]
            at = records[1]["$ts"]
            found = await client.ask("POST", f"/v0/topics/t/diff?from_ts={at}")
            assert [record["data"] for record in found.json["records"]] == [2]
            found = await client.ask("POST", f"/v0/topics/t/diff?from_ts={at + 60_000}")
            assert found.json["records"] == []
            assert found.json["tombstone"] is None

    run(go)


def test_a_read_from_a_time_and_a_seq_begins_with_the_later():
    async def go():
        async with serving() as client:
            for payload in (1, 2, 3):
                await client.write("t", payload)
                await asyncio.sleep(0.003)
            records = (await client.ask("POST", "/v0/topics/t/diff")).json["records"]
            at = records[1]["$ts"]
            for from_seq, expected in ((0, [2, 3]), (1, [2, 3]), (2, [3]), (3, [])):
                body = {"from_seq": from_seq}
                found = await client.ask("POST", f"/v0/topics/t/diff?from_ts={at}", body)
                assert [record["data"] for record in found.json["records"]] == expected
                found = await client.ask("POST", "/v0/topics/t/diff", {**body, "from_ts": at})
                assert [record["data"] for record in found.json["records"]] == expected

    run(go)


def test_who_refuses_arrow_gets_json():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            accept = "application/json, application/vnd.apache.arrow.stream;q=0"
            found = await client.ask("POST", "/v0/topics/t/diff", accept=accept)
            assert found.content_type == b"application/json"
            assert found.json["records"][0]["data"] == 1

    run(go)


def test_the_scheduler_tells_a_key_of_prefixes_nothing_of_routers_that_lead_out_of_them():
    async def go():
        async with serving(keys="all,one:r:app.") as client:
            for dest in ("app.copy", "other.copy"):
                body = {"source": "app.l", "dest": dest}
                made = await client.ask(
                    "PUT", f"/v0/routers/to-{dest}", body, authorization="Bearer all"
                )
                assert made.status == 201
            for key, expected in (("all", ["app.copy", "other.copy"]), ("one", ["app.copy"])):
                found = await client.ask(
                    "GET", "/v0/scheduler?topic=app.l", authorization=f"Bearer {key}"
                )
                routers = found.json["topic"]["routers"]
                assert sorted(router["dest"] for router in routers) == expected

    run(go)


def test_why_a_topic_waits_is_told_without_routers_that_lead_out_of_the_prefixes():
    def reason(client, key):
        found = client.start("GET", "/v0/scheduler?topic=app.l", authorization=f"Bearer {key}")
        return found.json["topic"]["reason"]

    async def go():
        async with serving(keys="all,one:r:app.") as client:
            everyone = {"authorization": "Bearer all"}
            config = {"cap_records": 1, "discard": "reject"}
            for dest in ("app.full", "other.full"):
                await client.ask("PUT", f"/v0/topics/{dest}", config, **everyone)
                body = {"source": "app.l", "dest": dest}
                await client.ask("PUT", f"/v0/routers/to-{dest}", body, **everyone)
            for payload in (1, 2):
                body = {"records": [{"data": payload}]}
                await client.ask("POST", "/v0/topics/app.l", body, **everyone)
            await until(lambda: reason(client, "all").count("is full") == 2)
            assert "to-other.full" in reason(client, "all")
            own = "router to-app.full: topic 'app.full' is full and rejects more"
            assert reason(client, "one") == own

    run(go)


def test_the_document_and_the_scheduler_are_told():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            assert (await client.ask("GET", "/v0/openapi.json")).json["openapi"] == "3.1.0"
            found = await client.ask("GET", "/v0/scheduler?topic=t")
            assert found.json["topic"]["topic"] == "t"

    run(go)


def test_what_is_null_counts_as_not_said():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            await client.write("q", 1)
            page = await client.ask("POST", "/v0/topics/q/diff", {"epoch": None, "tag": None})
            assert (page.status, len(page.json["records"])) == (200, 1)
            asked = {"node": "n", "lease_ms": None}
            claimed = await client.ask("POST", "/v0/topics/q/claim", asked)
            assert (claimed.status, claimed.json["count"]) == (200, 1)

    run(go)


def test_writes_to_several_topics_tell_what_the_log_took_unless_all_were_there():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/t", {"durability": "fsync"})
            write = {"topic": "t", "records": [{"data": 1}], "idempotency_key": "k"}
            spent = (await client.ask("POST", "/v0/write", {"writes": [write]})).json["performance"]
            assert {"wal_append_ms", "fsync_ms"} < spent.keys()
            assert spent["fsync_ms"] > 0
            again = (await client.ask("POST", "/v0/write", {"writes": [write]})).json["performance"]
            assert again.keys() == {"server_total_ms"}

    run(go)


def test_metrics_count_no_record_that_is_over_its_age():
    async def go():
        async with serving() as client:
            for name, kind in (("t", "log"), ("q", "queue")):
                await client.ask("PUT", f"/v0/topics/{name}", {"ttl_ms": 1, "type": kind})
                await client.write(name, 1)
            before_ms = client.engine.clock.now_ms()
            await until(lambda: client.engine.clock.now_ms() > before_ms + 2)
            assert b"topics_records_live 0" in (await client.ask("GET", "/v0/metrics")).body
            told = (await client.ask("GET", "/v0/metrics?topics=true")).body.decode()
            for topic in ("t", "q"):
                assert f'topics_topic_records_live{{topic="{topic}"}} 0' in told
            assert "topics_records_live 0" in told

    run(go)


class SlowClock(SystemClock):
    """Every look at it takes a tenth of a millisecond, and is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return super().monotonic_ns() + self.looks * 100_000


def test_a_scrape_does_not_look_at_topics_that_nothing_can_have_changed_in():
    async def go():
        looks = []
        for count in (10, 400):
            async with serving(clock=SlowClock()) as client:
                for number in range(count):
                    await client.write(f"t{number}", 1)
                before = client.clock.looks
                told = (await client.ask("GET", "/v0/metrics")).body.decode()
                assert f"topics_records_live {count}\n" in told
                assert 'topic="' not in told
                looks.append(client.clock.looks - before)
        assert abs(looks[1] - looks[0]) < 40, "a timer may look as well, but not 390 times"

    run(go)


def test_a_scrape_lets_others_have_their_turns():
    async def go():
        async with serving(clock=SlowClock()) as client:
            for number in range(300):
                config = {"ttl_ms": 60_000}
                await client.write(f"t{number}", 1, config=config)
            turns = 0

            def take_turn():
                nonlocal turns
                turns += 1
                asyncio.get_running_loop().call_soon(take_turn)

            exchange = client.start("GET", "/v0/metrics?topics=true")
            take_turn()
            await until(lambda: exchange.status is not None)
            assert exchange.body.count(b"topics_topic_head_seq{") == 300
            # 300 topics to let time pass in, 300 to show, 4 lines of each: 10 steps a turn.
            assert turns > 150

    run(go)


def test_single_topics_are_shown_to_who_may_see_them_and_begin_as_asked():
    async def go():
        async with serving(keys=KEYS) as client:
            root = {"authorization": "Bearer root"}
            for topic in ("a.x", "a.y", "b.x"):
                body = {"records": [{"data": 1}]}
                await client.ask("POST", f"/v0/topics/{topic}", body, **root)
            for key, query, shown in (
                ("root", "topics=true", {"a.x", "a.y", "b.x"}),
                ("root", "topics=1&prefix=a.", {"a.x", "a.y"}),
                ("reader", "topics=true", {"a.x", "a.y"}),
                ("root", "", set()),
                ("root", "prefix=a.", set()),
            ):
                found = await client.ask(
                    "GET", f"/v0/metrics?{query}", authorization=f"Bearer {key}"
                )
                told = re.findall(r'topics_topic_head_seq\{topic="(.*)"\}', found.body.decode())
                assert set(told) == shown

    run(go)
