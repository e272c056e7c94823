from __future__ import annotations

from base64 import urlsafe_b64encode

from penstock.server.push.sse import HEADERS
from tests.unit.server.fakes import run, serving
from tests.waiting import until


def payloads(events):
    return [r["data"] for kind, data in events if kind == "record" for r in data["records"]]


def kinds(events):
    return [kind for kind, _ in events]


def test_a_watcher_gets_what_is_there_and_what_comes():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            stream, _ = await client.watch(topics={"t": {}})
            assert stream.text.startswith(b"retry: 2000\n\nid: ")
            assert kinds(stream.events()) == ["record", "caught-up"]
            await client.write("t", 2)
            await until(lambda: len(stream.events()) == 4)
            assert kinds(stream.events())[2:] == ["record", "caught-up"]
            assert payloads(stream.events()) == [1, 2]

    run(go)


def test_a_watcher_that_does_not_read_misses_nothing_and_gets_nothing_twice():
    async def go():
        async with serving() as client:
            await client.write("t", 0)
            stream, _ = await client.watch(topics={"t": {}}, room=2)
            for number in range(1, 6):
                await client.write("t", number)
            assert payloads(stream.events()) == [0]
            stream.read(1)
            assert payloads(stream.events()) == [0, 1, 2, 3, 4, 5]
            await client.write("t", 6)
            stream.read(None)
            await until(lambda: payloads(stream.events()) == [0, 1, 2, 3, 4, 5, 6])

    run(go)


def test_the_scheduler_tells_of_watchers_that_do_not_read():
    async def go():
        async with serving() as client:
            await client.write("t", 0)
            stream, _ = await client.watch(topics={"t": {}}, room=2)
            socket = await client.socket(room=1)
            socket.say(op="subscribe", topic="t")
            await client.write("t", 1)
            await until(lambda: client.application.context.engine.turns.served >= 2)
            shown = (await client.ask("GET", "/v0/scheduler?topic=t")).json["topic"]
            assert (shown["watchers"], shown["watchers_behind"]) == (2, 2)
            assert shown["reason"] == "watchers that do not read what they were sent: 2"
            stream.read(None)
            socket.read(None)
            await until(lambda: payloads(stream.events()) == [0, 1] == socket.payloads())
            shown = (await client.ask("GET", "/v0/scheduler?topic=t")).json["topic"]
            assert shown["watchers_behind"] == 0
            assert shown["reason"].startswith("nothing to push")

    run(go)


def test_the_scheduler_tells_which_router_holds_a_topic_up():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/full", {"cap_records": 1, "discard": "reject"})
            await client.ask("PUT", "/v0/routers/r", {"source": "t", "dest": "full"})
            await client.write("t", 1, 2)
            await client.ask("GET", "/v0/routers/r")
            shown = (await client.ask("GET", "/v0/scheduler?topic=t")).json["topic"]
            assert shown["reason"] == "router r: topic 'full' is full and rejects more"

    run(go)


def test_streams_of_one_session_share_its_cursors():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            first, url = await client.watch(topics={"t": {}})
            second = client.start("GET", url).live
            assert payloads(first.events()) == [1]
            assert payloads(second.events()) == []
            await client.write("t", 2)
            await until(lambda: payloads(first.events()) + payloads(second.events()) == [1, 2])

    run(go)


def test_a_last_event_id_goes_back_but_never_forward():
    async def go():
        async with serving() as client:
            await client.write("t", 1, 2)
            first, url = await client.watch(topics={"t": {}})
            first.on_gone()
            lower = "eyJ0IjoxfQ"  # {"t":1}
            again = client.start("GET", url, last_event_id=lower).live
            assert payloads(again.events()) == [2]
            again.on_gone()
            higher = "eyJ0Ijo5OX0"  # {"t":99}
            await client.write("t", 3)
            third = client.start("GET", url, last_event_id=higher).live
            assert payloads(third.events()) == [3]

    run(go)


def test_a_last_event_id_that_cannot_be_read_is_ignored():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            made = await client.ask("POST", "/v0/watch", {"topics": {"t": {}}})
            nested = urlsafe_b64encode(b"[" * 2_000 + b"]" * 2_000).decode()
            stream = client.start("GET", made.json["stream_url"], last_event_id=nested).live
            assert payloads(stream.events()) == [1]

    run(go)


def test_a_stream_that_fails_to_begin_takes_nobodys_place(caplog):
    async def go():
        async with serving(streams_max=1) as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            made = await client.ask("POST", "/v0/watch", {"topics": {"q": {}}})
            paths = (made.json["stream_url"], "/v0/topics/q/work?node=n")
            for path in paths:
                assert client.start("GET", path, trouble="no stream").status == 500
                assert client.application.context.caps.streams == 0
                broken = client.start("GET", path, trouble="no write").live
                await until(lambda broken=broken: broken.closed)
                await until(lambda: client.application.context.caps.streams == 0)
            assert not client.application.context.streams
            assert not client.engine.watchers.has("q")
            assert client.start("GET", paths[0]).live is not None

    run(go)


def test_the_head_of_a_stream_opens_nothing():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            await client.write("q", 1)
            made = await client.ask("POST", "/v0/watch", {"topics": {"q": {}}})
            for path in (made.json["stream_url"], "/v0/topics/q/work?node=n"):
                head = client.start("HEAD", path)
                assert (head.status, head.content_type) == (200, b"text/event-stream")
                assert head.headers == dict(HEADERS)
                assert head.live.closed
                assert head.live.text == b""
            assert client.application.context.caps.streams == 0
            claimed = await client.ask("POST", "/v0/topics/q/claim", {"node": "n"})
            assert claimed.json["claimed"][0]["deliveries"] == 1
            assert payloads(client.start("GET", made.json["stream_url"]).live.events()) == [1]
            assert client.start("HEAD", "/v0/watch/wid_unknown").status == 404
            assert client.start("HEAD", "/v0/topics/q/work").status == 400

    run(go)


def test_the_first_tombstone_of_a_connection_blames_the_cursor_later_ones_the_cause():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/t", {"cap_records": 1})
            await client.write("t", 1, 2, 3)
            stream, _ = await client.watch(topics={"t": {}}, room=2)
            (kind, told), *rest = stream.events()
            assert (kind, told["reason"], told["gap_to"]) == ("tombstone", "from_seq_too_old", 2)
            assert payloads(rest) == [3]
            await client.write("t", 4, 5, 6)
            await client.write("t", 7)
            stream.read(None)
            later = [data for kind, data in stream.events() if kind == "tombstone"]
            assert [data["reason"] for data in later] == ["from_seq_too_old", "cap"]
            assert payloads(stream.events()) == [3, 7]

    run(go)


def test_a_stream_ends_with_the_last_of_its_topics():
    async def go():
        async with serving() as client:
            for topic in ("a", "b"):
                await client.write(topic, 1)
            stream, _ = await client.watch(topics={"a": {}, "b": {}})
            await client.ask("DELETE", "/v0/topics/a")
            await until(lambda: "topic-deleted" in kinds(stream.events()))
            assert not stream.closed
            await client.ask("DELETE", "/v0/topics/b")
            await until(lambda: stream.closed)
            gone = [data["topic"] for kind, data in stream.events() if kind == "topic-deleted"]
            assert gone == ["a", "b"]
            assert client.application.context.caps.streams == 0

    run(go)


def test_a_topic_made_anew_is_told_and_read_from_its_start():
    async def go():
        async with serving() as client:
            await client.write("a", 1)
            await client.write("b", 1, 2)
            stream, _ = await client.watch(topics={"a": {}, "b": {}})
            await client.ask("DELETE", "/v0/topics/b")
            await until(lambda: "topic-deleted" in kinds(stream.events()))
            await client.write("b", "new", "new", "newer")
            await until(lambda: "newer" in payloads(stream.events()))
            told = [data for kind, data in stream.events() if kind == "tombstone"]
            assert [data["reason"] for data in told] == ["recreated"]
            assert payloads(stream.events())[-3:] == ["new", "new", "newer"]

    run(go)


def test_topics_of_a_prefix_join_when_they_are_made_as_long_as_there_is_room():
    async def go():
        async with serving() as client:
            await client.write("a.1", "old")
            stream, _ = await client.watch(prefixes=["a."])
            assert payloads(stream.events()) == ["old"]
            for number in range(2, 6):
                await client.write(f"a.{number}", number)
            await client.write("b.1", "other")
            await until(lambda: payloads(stream.events()) == ["old", 2, 3, 4])
            told = [data for kind, data in stream.events() if kind == "left-out"]
            assert [(each["topics"], each["count"]) for each in told] == [(["a.5"], 1)]
            await client.ask("DELETE", "/v0/topics/a.2")
            await until(lambda: payloads(stream.events()) == ["old", 2, 3, 4, 5])
            await client.write("a.5", "again")
            await until(lambda: payloads(stream.events())[-1] == "again")

    run(go)


def test_a_prefix_of_more_topics_than_there_is_room_for_is_watched_in_part():
    async def go():
        async with serving() as client:
            for number in range(1, 8):
                await client.write(f"a.{number}", number)
            stream, _ = await client.watch(prefixes=["a."])
            assert payloads(stream.events()) == [1, 2, 3, 4]
            (told,) = [data for kind, data in stream.events() if kind == "left-out"]
            assert (told["topics"], told["count"]) == (["a.5", "a.6", "a.7"], 3)
            for number in (1, 3):
                await client.ask("DELETE", f"/v0/topics/a.{number}")
            await until(lambda: payloads(stream.events()) == [1, 2, 3, 4, 5, 6])

    run(go)


def test_a_socket_is_told_of_topics_for_which_it_has_no_room_and_gets_them_later():
    async def go():
        async with serving() as client:
            for number in range(1, 4):
                await client.write(f"a.{number}", number)
            await client.write("named", "n")
            socket = await client.socket()
            socket.say(op="subscribe", topic="named")
            await until(lambda: socket.payloads() == ["n"])
            socket.say(op="subscribe", prefixes=["a."])
            await until(lambda: socket.payloads() == ["n", 1, 2, 3])
            await client.write("a.4", 4)
            await client.write("a.5", 5)
            left = lambda: [m["topics"] for m in socket.messages if m["op"] == "left_out"]  # noqa: E731
            await until(lambda: left() == [["a.4"], ["a.5"]])
            socket.say(op="unsubscribe", topic="named")
            await until(lambda: socket.payloads() == ["n", 1, 2, 3, 4])
            await client.ask("DELETE", "/v0/topics/a.1")
            await until(lambda: socket.payloads() == ["n", 1, 2, 3, 4, 5])
            assert "error" not in socket.ops()

    run(go)


def test_topics_of_a_prefix_that_are_gone_make_room_for_others():
    async def come_and_go(client, names, told):
        for name in names:
            await client.write(name, name)
            await until(lambda name=name: name in payloads(told()))
            await client.ask("DELETE", f"/v0/topics/{name}")
            await until(lambda: told()[-1][0].startswith("topic"))

    async def go():
        async with serving() as client:
            stream, path = await client.watch(prefixes=["a."])
            socket = await client.socket()
            socket.say(op="subscribe", prefixes=["b."])
            await until(lambda: socket.ops() == ["subscribed"])
            await come_and_go(client, [f"a.{number}" for number in range(9)], stream.events)
            pushed = lambda: [(m["op"], m) for m in socket.messages]  # noqa: E731
            await come_and_go(client, [f"b.{number}" for number in range(9)], pushed)
            assert "error" not in kinds(stream.events())
            stream.on_gone()
            await client.write("a.9", "meanwhile")
            again = client.start("GET", path).live
            assert payloads(again.events()) == ["meanwhile"]
            await client.write("a.9", "on")
            await until(lambda: payloads(again.events()) == ["meanwhile", "on"])

    run(go)


def test_a_topic_of_a_prefix_that_is_made_again_is_watched_again():
    async def go():
        async with serving() as client:
            streams = [(await client.watch(prefixes=["a."]))[0] for _ in range(2)]
            for life in range(3):
                for number in range(4):
                    await client.write(f"a.{number}", life)
                for stream in streams:
                    await until(lambda s=stream, n=life: payloads(s.events()).count(n) == 4)
                for number in range(4):
                    await client.ask("DELETE", f"/v0/topics/a.{number}")
            assert all("error" not in kinds(stream.events()) for stream in streams)

    run(go)


def test_prefixes_of_a_socket_are_few_and_short():
    async def go():
        async with serving() as client:
            socket = await client.socket()
            await ask(socket, op="subscribe", prefixes=["x" * 256])
            await ask(socket, op="subscribe", prefixes=[f"{number}." for number in range(16)])
            await ask(socket, op="subscribe", prefixes=[f"{number}." for number in range(16)])
            await ask(socket, op="subscribe", prefixes=["one.more"])
            await ask(socket, op="unsubscribe")
            await ask(socket, op="subscribe", prefixes=["one.more"])
            assert socket.ops() == [
                "error", "subscribed", "subscribed", "error", "unsubscribed", "subscribed"
            ]  # fmt: skip
            assert {m["code"] for m in socket.messages if m["op"] == "error"} == {"invalid_request"}
            long = await client.ask("POST", "/v0/watch", {"prefixes": ["x" * 256]})
            assert (long.status, long.code) == (400, "invalid_request")

    async def ask(socket, **fields):
        before = len(socket.messages)
        socket.say(**fields)
        await until(lambda: len(socket.messages) > before)

    run(go)


def test_a_watcher_of_tags_gets_those_and_passes_the_rest():
    async def go():
        async with serving() as client:
            records = [{"data": tag, "tag": tag} for tag in ("x1", "y", "x2")]
            await client.ask("POST", "/v0/topics/t", {"records": records})
            stream, _ = await client.watch(topics={"t": {"tag": "x*"}})
            assert payloads(stream.events()) == ["x1", "x2"]
            assert stream.events()[-1] == ("caught-up", {"topic": "t", "head_seq": 3, "epoch": 1})

    run(go)


def test_records_can_be_had_without_their_data():
    async def go():
        async with serving() as client:
            await client.write("t", {"large": 1})
            stream, _ = await client.watch(topics={"t": {}}, include_data=False)
            (record,) = stream.events()[0][1]["records"]
            assert set(record) == {"$seq", "$ts"}

    run(go)


def test_sessions_are_limited_and_unknown_topics_refuse_a_watch():
    async def go():
        async with serving(sessions_max=1) as client:
            await client.write("t", 1)
            body = {"topics": {"t": {}, "absent": {}}}
            assert (await client.ask("POST", "/v0/watch", body)).code == "topic_not_found"
            lenient = await client.ask("POST", "/v0/watch?lenient=true", body)
            assert set(lenient.json["topics"]) == {"t"}
            full = await client.ask("POST", "/v0/watch", {"topics": {"t": {}}})
            assert full.json["error"]["detail"] == {"limit": "max_watch_sessions", "max": 1}
            for bad in ({"topics": {}}, {"topics": {str(n): {} for n in range(5)}}, {"topics": 1}):
                assert (await client.ask("POST", "/v0/watch", bad)).code == "invalid_request"

    run(go)


def test_a_heartbeat_comes_when_nothing_else_does():
    async def go():
        async with serving() as client:
            client.application.context.heartbeat_ms_min = 5
            await client.write("t", 1)
            stream, _ = await client.watch(topics={"t": {}}, heartbeat_ms=5)
            await until(lambda: stream.text.endswith(b": hb\n\n"))

    run(go)


def test_a_socket_subscribes_publishes_and_leaves():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            socket = await client.socket()
            socket.say(op="subscribe", topic="t", request_id=1)
            await until(lambda: len(socket.messages) == 3)
            assert socket.ops() == ["subscribed", "record", "caught_up"]
            socket.say(op="publish", topic="t", records=[{"data": 2}], request_id=2)
            await until(lambda: len(socket.messages) == 6)
            assert sorted(socket.ops()[3:]) == ["ack", "caught_up", "record"]
            socket.say(op="unsubscribe", request_id=3)
            assert socket.messages[-1] == {"op": "unsubscribed", "request_id": 3, "topics": ["t"]}
            await client.write("t", 3)
            socket.say(op="ping", request_id=4)
            assert socket.messages[-1] == {"op": "pong", "request_id": 4}
            socket.on_gone()
            assert client.application.context.caps.streams == 0
            assert not client.engine.watchers.has("t")

    run(go)


def test_a_socket_is_told_of_what_cannot_be_read_in_a_message():
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            socket = await client.socket()
            socket.on_text(b'{"op":"subscribe","topic":"t","limit":1e400,"request_id":1}')
            deep = b"[" * 2_000 + b"]" * 2_000
            socket.on_text(b'{"op":"subscribe","topic":"t","zz":%b,"request_id":2}' % deep)
            await until(lambda: len(socket.messages) == 2)
            told = {message["request_id"]: message["code"] for message in socket.messages}
            assert told == {1: "invalid_request", None: "invalid_json"}
            socket.on_text(b'{"op":"subscribe","topic":"t","zz":1e400,"request_id":3}')
            await until(lambda: "subscribed" in socket.ops())
            assert not socket.closed

    run(go)


def test_a_socket_that_does_not_read_gets_every_record_and_every_answer_once():
    async def go():
        async with serving() as client:
            for number in range(3):
                await client.write("t", number)
            socket = await client.socket(room=1)
            socket.say(op="subscribe", topic="t", limit=1, request_id=1)
            socket.say(op="ping", request_id=2)
            for _ in range(12):
                await client.ask("GET", "/v0/topics/t")
                socket.read(1)
            records = [m["records"][0]["data"] for m in socket.messages if m["op"] == "record"]
            assert records == [0, 1, 2]
            assert socket.ops().count("pong") == socket.ops().count("subscribed") == 1
            assert socket.ops()[-1] == "caught_up"

    run(go)


def test_a_socket_that_never_reads_its_answers_is_let_go():
    async def go():
        async with serving() as client:
            socket = await client.socket(room=0)
            for number in range(300):
                if not socket.closed:
                    socket.say(op="ping", request_id=number)
            assert socket.code == 1008
            assert client.application.context.caps.streams == 0

    run(go)


def test_a_socket_is_told_what_it_may_not_do():
    async def go():
        async with serving(keys="w:write,r:read") as client:
            exchange = await client.ask(
                "GET", "/v0/ws", upgrade="websocket", authorization="Bearer w"
            )
            socket = exchange.live
            socket.say(op="subscribe", topic="t", request_id=1)
            assert (socket.messages[-1]["code"], socket.messages[-1]["request_id"]) == (
                "forbidden",
                1,
            )
            socket.say(op="publish", topic="t", records=[{"data": 1}], config={}, request_id=2)
            assert socket.messages[-1]["code"] == "forbidden"
            protocols = "penstock.v0, bearer.cg"
            browser = await client.ask(
                "GET", "/v0/ws", upgrade="websocket", sec_websocket_protocol=protocols
            )
            assert browser.headers == {b"protocol": b"penstock.v0"}

    run(go)


def test_a_worker_holds_as_many_as_it_asked_for_and_gives_them_back_when_it_goes():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            await client.write("q", "a", "b", "c")
            stream = client.start("GET", "/v0/topics/q/work?node=n&max=2").live
            await until(lambda: len(stream.events()) == 2)
            assert [data["$seq"] for _, data in stream.events()] == [1, 2]
            await client.ask("POST", "/v0/topics/q/ack", {"node": "n", "seqs": [1]})
            await until(lambda: len(stream.events()) == 3)
            stream.on_gone()
            await until(lambda: client.application.context.caps.streams == 0)
            queue = (await client.ask("GET", "/v0/topics/q")).json["queue"]
            assert queue == {"ready": 2, "in_flight": 0, "dead_lettered": 0}

    run(go)


def test_a_worker_without_room_is_given_no_jobs():
    async def go():
        async with serving() as client:
            once = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await client.ask("PUT", "/v0/topics/q", once)
            await client.write("q", "a", "b", "c")
            stream = client.start("GET", "/v0/topics/q/work?node=n&max=3", room=1).live
            await until(lambda: stream.text)
            claimed = await client.ask("POST", "/v0/topics/q/claim", {"node": "other"})
            assert claimed.json["ready"] == 2
            stream.read(None)
            await until(lambda: len(stream.events()) == 2)
            told = [(data["$seq"], data["deliveries"]) for _, data in stream.events()]
            assert told == [(2, 1), (3, 1)]

    run(go)


def test_a_worker_is_given_no_more_large_jobs_than_it_reads():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            for number in range(6):
                await client.write("q", [number, "x" * 300_000])
            stream = client.start("GET", "/v0/topics/q/work?node=n&max=6", room=3).live
            await until(lambda: len(stream.events()) == 2)
            queue = (await client.ask("GET", "/v0/topics/q")).json["queue"]
            assert (queue["ready"], queue["in_flight"]) == (4, 2)
            stream.read(None)
            await until(lambda: len(stream.events()) == 6)

    run(go)


def test_a_job_whose_worker_goes_while_it_is_claimed_was_not_delivered():
    async def go():
        async with serving() as client:
            once = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await client.ask("PUT", "/v0/topics/q", {**once, "claim_jitter_ms": 20})
            await client.write("q", "a")
            stream = client.start("GET", "/v0/topics/q/work?node=n").live
            await until(lambda: stream.text)
            stream.on_gone()
            stream.close()
            await until(lambda: not client.application.context.tasks)
            queue = (await client.ask("GET", "/v0/topics/q")).json["queue"]
            assert queue == {"ready": 1, "in_flight": 0, "dead_lettered": 0}
            again = (await client.ask("POST", "/v0/topics/q/claim", {"node": "m"})).json["claimed"]
            assert [(job["$seq"], job["deliveries"]) for job in again] == [(1, 1)]

    run(go)


def test_a_job_whose_claimer_goes_before_the_answer_was_not_delivered():
    async def go():
        async with serving() as client:
            once = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await client.ask("PUT", "/v0/topics/q", {**once, "claim_jitter_ms": 20})
            await client.write("q", "a")
            for _ in range(2):
                asked = client.start("POST", "/v0/topics/q/claim", {"node": "n"})
                asked.is_gone = True  # over HTTP/2 perhaps before its handler has begun
                await until(lambda: not client.application.context.tasks)
            again = (await client.ask("POST", "/v0/topics/q/claim", {"node": "m"})).json["claimed"]
            assert [(job["$seq"], job["deliveries"]) for job in again] == [(1, 1)]

    run(go)


def test_a_claimer_that_sends_no_more_gets_no_jobs_as_it_may_be_gone():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            await client.write("q", "a")
            asked = client.start("POST", "/v0/topics/q/claim", {"node": "n"})
            asked.half_closed = True
            await until(lambda: asked.status is not None)
            assert (asked.json["claimed"], asked.json["ready"]) == ([], 1)
            again = (await client.ask("POST", "/v0/topics/q/claim", {"node": "m"})).json["claimed"]
            assert [(job["$seq"], job["deliveries"]) for job in again] == [(1, 1)]

    run(go)


def test_a_worker_of_a_queue_that_is_gone_is_told():
    async def go():
        async with serving() as client:
            await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
            stream = client.start("GET", "/v0/topics/q/work?node=n").live
            await client.ask("DELETE", "/v0/topics/q")
            await until(lambda: stream.closed)
            assert stream.events() == [
                ("error", {"code": 409, "error": "topic is no longer a queue", "topic": "q"})
            ]

    run(go)


def test_a_watcher_that_fails_is_let_go_and_harms_no_other(caplog):
    async def go():
        async with serving() as client:
            await client.write("t", 1)
            broken, _ = await client.watch(topics={"t": {}})
            well, _ = await client.watch(topics={"t": {}})
            broken.broken = True
            await client.write("t", 2)
            await until(lambda: payloads(well.events()) == [1, 2])
            assert broken.closed
            assert client.application.context.caps.streams == 1
            assert "could not be pushed" in caplog.text

    run(go)


def test_a_long_backlog_is_pushed_in_several_turns():
    async def go():
        async with serving() as client:
            await client.write("t", *range(100))
            stream, _ = await client.watch(topics={"t": {}}, limit=2)
            assert 0 < len(payloads(stream.events())) < 100, "others get their turn in between"
            await until(lambda: payloads(stream.events()) == list(range(100)))
            assert kinds(stream.events())[-1] == "caught-up"

    run(go)


def test_subscriptions_begin_and_end_in_the_order_in_which_they_are_asked_for():
    async def test() -> None:
        async with serving() as client:
            await client.write("t", 1)
            socket = await client.socket()
            socket.say(op="subscribe", topic="t", request_id=1)
            socket.say(op="unsubscribe", topic="t", request_id=2)
            await until(lambda: "unsubscribed" in socket.ops())
            assert socket.ops()[0] == "subscribed"
            assert socket.messages[-1]["topics"] == ["t"]
            await client.write("t", 2)
            told = len(socket.messages)
            socket.say(op="ping")
            await until(lambda: socket.ops()[-1] == "pong")
            assert len(socket.messages) == told + 1
            socket.say(op="unsubscribe", request_id=3)
            socket.say(op="subscribe", topic="t", request_id=4)
            await until(lambda: socket.ops()[-1] == "caught_up")
            assert client.engine.watchers.has("t")

    run(test)


def test_topics_of_one_peer_take_turns_however_much_one_of_them_has():
    async def go():
        async with serving() as client:
            for name in ("busy", "quiet"):
                await client.ask("PUT", f"/v0/topics/{name}", {})
            stream, _ = await client.watch(room=4, topics={"busy": {}, "quiet": {}}, limit=1)
            stream.room = 0
            await client.write("busy", *range(50))
            await client.write("quiet", "one")
            await until(lambda: not client.engine.turns.view()["waiting"])
            for _ in range(3):
                stream.read(1)
                await client.write("busy", "more")
            assert "one" in payloads(stream.events())

    run(go)


def test_whoever_opens_very_much_at_once_leaves_others_their_turn():
    async def go():
        async with serving() as client:
            topics = [f"t{number}" for number in range(4)]
            for topic in topics:
                await client.write(topic, *range(400))
            stream, _ = await client.watch(topics={topic: {} for topic in topics}, limit=10)
            assert len(payloads(stream.events())) <= 80, "a few pages, not a few of each topic"
            await until(lambda: len(payloads(stream.events())) == 4 * 400)

    run(go)


def test_whoever_comes_back_to_an_earlier_life_of_a_topic_is_told_and_gets_all_of_this_one():
    async def go(old_seqs):
        async with serving() as client:
            await client.write("t", *range(old_seqs))
            await client.ask("PUT", "/v0/topics/keep", {})
            stream, url = await client.watch(topics={"keep": {}, "t": {}})
            last_id = stream.text.rpartition(b"id: ")[2].partition(b"\n")[0].decode()
            await client.ask("DELETE", "/v0/topics/t")
            await client.write("t", "a", "b", "c", "d", "e")
            await until(lambda: "e" in payloads(stream.events()))  # of which the peer saw nothing
            stream.on_gone()
            for _ in range(2):  # and if that is lost as well, again
                again = client.start("GET", url, last_event_id=last_id).live
                await until(lambda again=again: "e" in payloads(again.events()))
                assert payloads(again.events()) == ["a", "b", "c", "d", "e"]
                assert "tombstone" in kinds(again.events())
                again.on_gone()
            here = again.text.rpartition(b"id: ")[2].partition(b"\n")[0].decode()
            await client.write("t", "f")
            then = client.start("GET", url, last_event_id=here).live
            await until(lambda: payloads(then.events()) == ["f"])
            assert "tombstone" not in kinds(then.events())

    for old_seqs in (10, 3):
        run(lambda old_seqs=old_seqs: go(old_seqs))
