from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.protocol.pages import HISTORY, RESUME_MS, Section, Source
from penstock.server.live.ask import WouldWait, at_once
from penstock.server.live.channels import REST_BYTES, REST_TICKS_MAX, SharedSection
from penstock.server.live.hub import Hub
from penstock.server.live.stream import PAGES_MAX, WAITING_BYTES_MAX
from penstock.testing import ManualClock
from penstock.web.pages import Dashboard
from tests.live_model import reduce
from tests.unit.server.fakes import Client, FakeStream, run, serving
from tests.waiting import until

SITE = Dashboard({"shell.json": b"{}"})


def hub_of(client: Client) -> Hub:
    hub = client.application.context.live
    assert hub is not None
    return hub


async def look(client: Client, target: str, room: int | None = None, **headers: str) -> FakeStream:
    exchange = await client.ask("GET", f"/v0/live?{target}", room=room, **headers)
    assert exchange.live is not None, exchange.body
    return exchange.live


def seen(stream: FakeStream, event: str) -> list[Any]:
    return [data for name, data in stream.events() if name == event]


def picture(stream: FakeStream, on: str) -> Any:
    """What a browser shows of a page after all events so far."""
    twin = None
    for event, data in stream.events():
        if data.get("on") == on:
            twin = reduce(twin, event, data)
    return twin


def test_a_stream_begins_with_the_twin_and_goes_on_with_frames():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", 1)
            stream = await look(client, "page=topic&name=meters")
            await until(lambda: len(seen(stream, "frame")) >= 2)
            [state] = seen(stream, "state")
            assert state["on"] == "/topics/meters"
            assert state["sections"]["topic"]["head_seq"] == 1
            assert "performance" not in state["sections"]["topic"]
            assert all(frame["at"] >= state["at"] for frame in seen(stream, "frame"))
            await client.write("meters", 2, 3)
            await until(
                lambda: picture(stream, "/topics/meters")["sections"]["topic"]["count"] == 3
            )

    run(test)


def test_what_frames_add_up_to_is_the_twin():
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/topics")
            for n in range(30):
                await client.write(f"t{n % 7}", n)
            await client.ask("DELETE", "/v0/topics/t3")
            twin = await client.ask("GET", "/topics", accept="application/json")
            await until(
                lambda: (
                    still(picture(stream, "/topics")["sections"]["topics"])
                    == still(twin.json["sections"]["topics"])
                )
            )

    run(test)


def still(value: Any) -> Any:
    """What does not change by time alone: rates fall from one frame to the next."""
    if isinstance(value, dict):
        falling = ("in_per_s", "out_per_s")
        return {key: still(each) for key, each in value.items() if key not in falling}
    return [still(each) for each in value] if isinstance(value, list) else value


def test_several_pages_share_one_stream_and_each_event_names_its_page():
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/&on=/topics%3Fprefix%3Da&on=/topics%3Fprefix%3Da")
            await until(lambda: len(seen(stream, "frame")) >= 4)
            assert [data["on"] for data in seen(stream, "state")] == ["/", "/topics?prefix=a"]
            assert {data["on"] for data in seen(stream, "frame")} == {"/", "/topics?prefix=a"}

    run(test)


def test_a_frame_is_encoded_once_for_all_who_look():
    async def test() -> None:
        async with serving(site=SITE) as client:
            streams = [await look(client, "on=/") for _ in range(20)]
            hub = hub_of(client)
            assert len(hub.channels) == 1
            [channel] = hub.channels.values()
            assert len(channel.viewers) == 20
            await until(lambda: all(seen(stream, "frame") for stream in streams))

    run(test)


def test_pages_share_their_sections():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await look(client, "on=/&on=/cluster")
            await until(lambda: len(hub_of(client).channels) == 2)
            overview, cluster = hub_of(client).channels.values()
            assert overview.sections["scheduler"] is cluster.sections["scheduler"]

    run(test)


def test_pages_that_show_parts_of_one_answer_ask_for_it_once():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await look(client, "on=/&on=/pipeline")
            await until(lambda: len(hub_of(client).channels) == 2)
            overview, pipeline = hub_of(client).channels.values()
            some, all_of_it = overview.sections["pipeline"], pipeline.sections["pipeline"]
            assert some is not all_of_it
            assert some.question == all_of_it.question
            for shown in (some, all_of_it):
                await until(lambda shown=shown: shown.is_known and "bottleneck" in shown.value)
            assert all_of_it.value.keys() - some.value.keys() == {"decisions"}
            assert overview.sections["history"].question != pipeline.sections["history"].question

    run(test)


def test_what_waits_for_nothing_is_done_at_once():
    async def counted() -> int:
        return 7

    assert at_once(counted()) == 7


def test_what_waits_is_given_up_so_that_a_task_can_do_it():
    ended = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(WouldWait):
        at_once(waiting())
    assert ended == [True]


def test_nothing_is_asked_while_nobody_looks():
    async def test() -> None:
        async with serving(site=SITE) as client:
            hub = hub_of(client)
            stream = await look(client, "on=/&on=/topics")
            await until(lambda: len(hub.channels) == 2)
            assert hub.is_busy
            assert stream.on_gone is not None
            stream.on_gone()
            await until(lambda: not hub.channels)
            assert not hub.is_busy
            assert client.application.context.caps.streams == 0

    run(test)


def test_keys_with_other_rights_do_not_share_frames():
    async def test() -> None:
        async with serving(site=SITE, keys="k1:read:a.,k2:read,k3:read") as client:
            for name in ("a.x", "b.x"):
                made = await client.ask("PUT", f"/v0/topics/{name}", {}, authorization="Bearer k2")
                assert made.status == 403
                await client.engine.put_topic(name, {})
            narrow = await look(client, "on=/topics", authorization="Bearer k1")
            wide = await look(client, "on=/topics", authorization="Bearer k2")
            same = await look(client, "on=/topics", authorization="Bearer k3")
            await until(lambda: all(seen(each, "frame") for each in (narrow, wide, same)))
            assert b"b.x" not in narrow.text
            assert b"b.x" in wide.text
            assert len(hub_of(client).channels) == 2, "k2 and k3 may read the same"

    run(test)


def test_a_key_sees_no_record_of_a_topic_beyond_its_prefixes():
    async def test() -> None:
        async with serving(site=SITE, keys="k1:read:a.") as client:
            await client.engine.put_topic("b.x", {})
            stream = await look(client, "on=/topics/b.x", authorization="Bearer k1")
            await until(lambda: bool(seen(stream, "frame")))
            [state] = seen(stream, "state")
            assert state["sections"]["peek"]["error"]["code"] == "forbidden"
            assert state["sections"]["topic"]["error"]["code"] == "forbidden"

    run(test)


def test_records_are_shown_as_they_come():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", "old")
            stream = await look(client, "on=/topics/meters")
            await until(lambda: bool(seen(stream, "state")))
            peek = seen(stream, "state")[0]["sections"]["peek"]
            assert [record["data"] for record in peek["records"]] == ["old"]
            await client.write("meters", "new", "<img src=x onerror=1>")
            await until(lambda: bool(seen(stream, "peek")))
            told = seen(stream, "peek")[0]
            assert (told["from_seq"], told["to_seq"], told["skipped"]) == (1, 3, 0)
            assert [r["data"] for r in told["records"]] == ["new", "<img src=x onerror=1>"]

    run(test)


def test_shown_and_skipped_records_add_up_to_all():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", 0)
            stream = await look(client, "on=/topics/meters")
            await until(lambda: bool(seen(stream, "state")))
            for _ in range(10):
                await client.write("meters", *range(50))
            await until(
                lambda: bool(seen(stream, "peek")) and seen(stream, "peek")[-1]["to_seq"] == 501
            )
            told = seen(stream, "peek")
            assert [each["from_seq"] for each in told] == [1, *(e["to_seq"] for e in told[:-1])]
            for each in told:
                assert len(each["records"]) + each["skipped"] == each["to_seq"] - each["from_seq"]
            shown = [record["$seq"] for each in told for record in each["records"]]
            assert shown == sorted(set(shown))
            assert len(shown) < 100

    run(test)


def test_a_reader_that_stops_reading_is_told_all_of_it_when_it_goes_on():
    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", 0)
            slow = await look(client, "on=/topics/meters", room=3)  # retry, state, and one more
            quick = await look(client, "on=/topics/meters")
            await until(lambda: slow.room == 0)
            await client.write("meters", *range(9))
            await until(
                lambda: picture(quick, "/topics/meters")["sections"]["topic"]["count"] == 10
            )
            length = len(slow.text)
            await until(lambda: len(seen(quick, "frame")) > 5)
            assert len(slow.text) == length, "it was not written to"
            slow.read(None)
            on = "/topics/meters"
            await until(lambda: picture(slow, on)["sections"]["topic"]["count"] == 10)
            told = seen(slow, "peek")
            assert sum(len(e["records"]) + e["skipped"] for e in told) == 9, "none is lost unsaid"
            await client.write("meters", 1)
            await until(lambda: picture(slow, on)["sections"]["topic"]["count"] == 11)

    run(test)


def test_a_reader_whose_socket_is_full_is_left_out():
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/")
            await until(lambda: bool(seen(stream, "frame")))
            stream.buffered = WAITING_BYTES_MAX + 1
            await asyncio.sleep(0)
            frames = len(seen(stream, "frame"))
            other = await look(client, "on=/")
            await until(lambda: len(seen(other, "frame")) > 3)
            assert len(seen(stream, "frame")) <= frames + 1
            stream.buffered = WAITING_BYTES_MAX
            stream.read(None)
            await until(lambda: len(seen(stream, "frame")) > frames + 3)

    run(test)


def test_a_state_that_finds_no_room_comes_when_there_is_some():
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/&on=/topics", room=1)  # retry only
            await asyncio.sleep(0)
            assert seen(stream, "state") == []
            await until(lambda: hub_of(client).channels != {})
            await until(lambda: stream.room == 0)
            stream.read(None)
            await until(lambda: len(seen(stream, "state")) == 2)

    run(test)


def test_a_page_misses_nothing_while_another_one_waits_for_room_to_begin():
    async def test() -> None:
        async with serving(site=SITE) as client:
            both = await look(client, "on=/topics&on=/", room=2)  # retry, and one state
            quick = await look(client, "on=/topics")
            await until(lambda: both.room == 0)
            await client.write("meters", 1)
            await until(lambda: topics_in(quick) == (1, ["meters"]))
            both.read(None)
            await until(lambda: len(seen(both, "state")) == 2)
            frames = len(seen(both, "frame"))
            await until(lambda: len(seen(both, "frame")) > frames)
            assert topics_in(both) == (1, ["meters"])

    run(test)


def topics_in(stream: FakeStream) -> tuple[int, list[str]]:
    """How many topics the page of topics counts, and those that it lists."""
    shown = picture(stream, "/topics")["sections"]
    return shown["counts"]["topics"], [row["topic"] for row in shown["topics"]["topics"]]


@pytest.mark.parametrize("is_asked", [False, True], ids=["header", "query"])
def test_a_stream_goes_on_behind_its_last_event(is_asked):
    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", 0)
            first = await look(client, "on=/topics/meters")
            await until(lambda: len(seen(first, "frame")) >= 2)
            assert first.on_gone is not None
            first.on_gone()
            await client.write("meters", 1)
            place = first.ids()[-1]
            again = await (
                look(client, f"on=/topics/meters&after={place}")
                if is_asked
                else look(client, "on=/topics/meters", last_event_id=place)
            )
            await until(lambda: bool(seen(again, "frame")))
            assert seen(again, "state") == []
            whole = seen(again, "frame")[0]["set"]
            assert whole["topic"]["count"] == 2
            assert "peek" not in whole

    run(test)


@pytest.mark.parametrize(
    "told",
    ["other.1795001594051.0", "boot.x.0", "boot.1.0", "boot", "", "boot.-1.0", "boot." + "9" * 200],
)
def test_a_stream_that_cannot_go_on_begins_anew(told):
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/topics", last_event_id=told)
            await until(lambda: bool(seen(stream, "state")))

    run(test)


@pytest.mark.parametrize(("late_ms", "begins"), [(RESUME_MS, "frame"), (RESUME_MS + 1, "state")])
def test_what_was_missed_is_told_for_a_quarter_of_an_hour(late_ms, begins):
    async def test() -> None:
        clock = ManualClock(now_ms=5_000_000)
        async with serving(site=SITE, clock=clock) as client:
            place = f"boot.{clock.now_ms() - late_ms}.0"
            stream = await look(client, "on=/topics", last_event_id=place)
            await until(lambda: bool(stream.events()))
            assert stream.events()[0][0] == begins

    run(test)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("", 400), ("page=nothing", 400), ("page=topic", 400), ("on=/nothing", 404),
        ("on=https://evil.example/", 404), ("page=entity&name=a", 400),
        ("&".join(f"on=/topics/t{n}" for n in range(PAGES_MAX + 1)), 400),
    ],
)  # fmt: skip
def test_a_stream_of_no_page_is_refused(target, status):
    async def test() -> None:
        async with serving(site=SITE) as client:
            exchange = await client.ask("GET", f"/v0/live?{target}")
            assert exchange.status == status, exchange.body
            assert client.application.context.caps.streams == 0

    run(test)


def test_as_many_pages_as_allowed_are_streamed():
    async def test() -> None:
        async with serving(site=SITE) as client:
            pages = "&".join(f"on=/topics/t{n}" for n in range(PAGES_MAX))
            stream = await look(client, pages)
            await until(lambda: len(seen(stream, "state")) == PAGES_MAX)

    run(test)


def test_an_event_reaches_all_viewers_although_another_one_joins():
    async def test() -> None:
        async with serving(site=SITE) as client:
            first = await look(client, "on=/")
            await until(lambda: bool(seen(first, "frame")))
            client.application.context.events.happened("started", "info", "something")
            second = await look(client, "on=/")
            await until(lambda: bool(seen(second, "state")))
            for stream in (first, second):
                await until(lambda stream=stream: "something" in happened(stream))
                assert happened(stream).count("something") == 1

    run(test)


def happened(stream: FakeStream) -> list[str]:
    """What the overview tells of events."""
    return [event["text"] for event in picture(stream, "/")["sections"]["events"]["events"]]


def test_a_viewer_that_was_told_all_meanwhile_does_not_get_an_older_frame():
    class Reader:
        def __init__(self) -> None:
            self.told: list[bytes] = []

        def tell(self, _channel: Any, _event: bytes, data: bytes) -> bool:
            self.told.append(data)
            return True

    async def test() -> None:
        async with serving(site=SITE) as client:
            await look(client, "on=/")
            hub = hub_of(client)
            await until(lambda: bool(hub.channels))
            [channel] = hub.channels.values()
            early, late = Reader(), Reader()
            hub.told_all(early, channel)
            frames = [(channel, b"frame", [early, late])]
            moves = channel.viewers[early] + 1
            channel.viewers[late] = moves
            await hub._tell_all(b"frame", frames, moves)
            await hub._tell_all(b"event", [(channel, b"event", [early, late])])
            assert (early.told, late.told) == ([b"frame", b"event"], [b"event"])

    run(test)


def test_a_stream_needs_a_key_where_there_are_keys():
    async def test() -> None:
        async with serving(site=SITE, keys="k1:read,w:write") as client:
            assert (await client.ask("GET", "/v0/live?on=/")).status == 401
            refused = await client.ask("GET", "/v0/live?on=/", authorization="Bearer w")
            assert refused.status == 403

    run(test)


def test_a_stream_says_goodbye_when_the_server_stops():
    async def test() -> None:
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/")
            await until(lambda: bool(seen(stream, "state")))
        assert stream.events()[-1][0] == "bye"
        assert stream.events()[-1][1]["code"] == "server_shutting_down"
        assert stream.closed

    run(test)


def test_one_section_that_fails_or_takes_long_holds_no_other_up(monkeypatch):
    from penstock.server.live import hub as module

    real = module.section

    async def slow(context, grant, source, *, since_ms=None):
        if source.section.name == "scheduler":
            await asyncio.Event().wait()
        return await real(context, grant, source, since_ms=since_ms)

    async def test() -> None:
        monkeypatch.setattr(module, "PATIENCE_S", 0.01)
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/")
            await until(lambda: bool(seen(stream, "state")))
            monkeypatch.setattr(module, "section", slow)
            await client.write("new", 1)
            await until(lambda: picture(stream, "/")["sections"]["counts"]["topics"] == 1)

    run(test)


def test_a_stream_begins_without_a_section_that_takes_long_and_tells_it_later(monkeypatch):
    from penstock.server.live import hub as module
    from penstock.server.live import twins

    real, answers = twins.section, asyncio.Event()

    async def slow(context, grant, source, **since):
        if source.section.name == "counts":
            await answers.wait()
        return await real(context, grant, source, **since)

    async def test() -> None:
        monkeypatch.setattr(module, "BEGIN_S", 0.01)
        monkeypatch.setattr(twins, "section", slow)
        async with serving(site=SITE) as client:
            stream = await look(client, "on=/")
            await until(lambda: bool(seen(stream, "state")))
            assert seen(stream, "state")[0]["sections"]["counts"] == module.LATER
            answers.set()
            await until(lambda: "topics" in picture(stream, "/")["sections"]["counts"])

    run(test)


@pytest.mark.parametrize("fails", ["changes", "joined"])
def test_a_change_that_cannot_be_told_is_told_whole_later(monkeypatch, fails):
    from penstock.server.live import channels

    real, failures, moved = getattr(channels, fails), [], []

    def broken(*arguments):
        """Fails once, after the topic's section has moved on."""
        given = [list(each) if fails == "joined" else each for each in arguments]
        if "'head_seq': 3" in repr(given):
            moved.append(True)
        if not failures and moved and (fails == "joined" or "head_seq" not in repr(given)):
            failures.append(fails)
            raise RuntimeError(fails)
        return real(*given)

    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("meters", 1)
            stream = await look(client, "on=/topics/meters")
            await until(lambda: len(seen(stream, "frame")) >= 2)
            monkeypatch.setattr(channels, fails, broken)
            await client.write("meters", 2, 3)
            await until(lambda: bool(failures))
            frames = len(seen(stream, "frame"))
            await until(lambda: len(seen(stream, "frame")) > frames + 1)
            shown = picture(stream, "/topics/meters")["sections"]
            assert shown["topic"]["head_seq"] == 3
            told = [at for frame in seen(stream, "frame") for at in pushed(frame)]
            assert len(shown["history"]["t"]) == len(set(shown["history"]["t"]))
            assert set(told) <= set(shown["history"]["t"])

    run(test)


def pushed(frame: Any) -> list[int]:
    """The times of a frame's points of history."""
    times: list[int] = frame.get("push", {}).get("history", {}).get("t", [])
    return times


def test_a_section_whose_change_was_lost_is_told_whole_even_if_it_rests():
    shown = section()
    shown.begin({"n": 1})
    shown.rest()
    shown.advance(shown.compared({"n": 2}), 1)
    shown.lose()
    shown.rest()
    assert shown.change == {"set": {"n": 2}}
    shown.advance(shown.compared({"n": 3}), 2)
    assert shown.change == {"set": {"n": 3}}
    shown.rest()
    assert shown.change == {}


def test_points_that_were_lost_are_told_again():
    shown = SharedSection(Source(Section("x", "/v0/x", kind=HISTORY), "/v0/x", ""), None)
    shown.begin({"t": [1], "in": [1]})
    shown.rest()
    shown.advance(shown.compared({"t": [1, 2], "in": [1, 2]}), 1)
    shown.lose()
    shown.rest()
    shown.advance(shown.compared({"t": [1, 2, 3], "in": [1, 2, 3]}), 2)
    assert shown.change == {"push": {"t": [2, 3], "in": [2, 3]}}


def section(every_s: int = 1) -> SharedSection:
    return SharedSection(Source(Section("x", "/v0/x", every_s=every_s), "/v0/x", ""), None)


@pytest.mark.parametrize(
    ("size", "rests"),
    [(REST_BYTES // 2, 1), (REST_BYTES * 3, 4), (REST_BYTES * 90, REST_TICKS_MAX + 1)],
)
def test_a_section_with_a_large_change_rests(size, rests):
    shown = section()
    shown.begin({"text": ""})
    shown.advance(shown.compared({"text": "x" * size}), 10)
    assert [shown.is_due(10 + n) for n in range(1, rests + 1)] == [False] * (rests - 1) + [True]


def test_a_section_is_asked_for_as_often_as_its_page_says():
    shown, once = section(5), section(0)
    assert not shown.is_due(5), "it has no value yet"
    shown.begin({})
    once.begin({})
    assert [tick for tick in range(1, 12) if shown.is_due(tick)] == [5, 10]
    assert not any(once.is_due(tick) for tick in range(100))


def test_every_frame_is_json_with_the_time_of_the_server():
    async def test() -> None:
        clock = ManualClock(now_ms=77_000)
        async with serving(site=SITE, clock=clock) as client:
            stream = await look(client, "on=/cluster")
            await until(lambda: bool(seen(stream, "frame")))
            assert {frame["at"] for frame in seen(stream, "frame")} == {77_000}
            assert json.loads(json.dumps(seen(stream, "state")[0]))["at"] == 77_000

    run(test)
