from __future__ import annotations

import pytest

from penstock.protocol.errors import Throttled, Unauthorized
from penstock.protocol.session import SESSION_MS, SESSIONS_MAX, WRONG_KEYS_MAX, WRONG_KEYS_MS
from penstock.server.api.auth import Grant, parse_keys
from penstock.server.api.sessions import Sessions, WrongKeys, cookies
from penstock.server.http.message import USUAL, Request, Sender
from penstock.testing.clock import ManualClock
from penstock.web.pages import Dashboard
from tests.unit.server.fakes import Client, FakeExchange, run, serving
from tests.waiting import until

SITE = Dashboard({"shell.json": b'{"js":{"overview":"a.js"}}', "a.js": b"1"})
KEYS = "root,reader:read:a.,w:write"
GRANT = Grant(b"digest")
FOREIGN = (
    Sender(foreign_page="https://evil.example", is_same_origin=False),
    Sender(origin="https://app.example", cors=((b"x", b"y"),), is_same_origin=False),
)


async def sign_in(client: Client, key: str = "root", **headers: str) -> tuple[str, FakeExchange]:
    """The cookie of a new session, as a browser sends it back, and the answer that set it."""
    answer = await client.ask("POST", "/v0/session", authorization=f"Bearer {key}", **headers)
    assert answer.status == 200, answer.body
    return answer.headers[b"set-cookie"].decode().partition(";")[0], answer


async def from_page(
    client: Client, sender: Sender, method: str, path: str, cookie: str
) -> int | None:
    """The status of the answer to a request that a page makes with a cookie."""
    headers = {"cookie": cookie, "accept": "application/json"}
    exchange = FakeExchange(Request(method, path, "", headers, b"", sender))
    client.application(exchange)
    await until(lambda: exchange.status is not None)
    return exchange.status


def test_the_oldest_session_ends_when_there_are_too_many():
    sessions = Sessions()
    for n in range(SESSIONS_MAX):
        sessions.open(f"t{n}", GRANT, n)
    assert sessions.find(["t0"], SESSIONS_MAX) is not None
    sessions.open("one more", GRANT, SESSIONS_MAX)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(["t0"], SESSIONS_MAX) is None
    assert sessions.find(["t1"], SESSIONS_MAX) is not None
    assert sessions.find(["one more"], SESSIONS_MAX) is not None


def test_a_session_ends_after_twelve_hours_and_costs_nothing_then():
    sessions = Sessions()
    sessions.open("t", GRANT, 5)
    assert sessions.find(["t"], 5 + SESSION_MS - 1) is not None
    assert sessions.find(["t"], 5 + SESSION_MS) is None
    assert len(sessions) == 0


def test_sessions_keep_digests_only():
    sessions = Sessions()
    sessions.open("a secret token", GRANT, 0)
    assert "a secret token" not in repr(vars(sessions))


def test_ten_wrong_keys_in_a_minute_and_no_further_one_is_looked_at():
    wrong = WrongKeys()
    for n in range(WRONG_KEYS_MAX):
        wrong.check("a", n)
        wrong.count("a", n)
    with pytest.raises(Throttled) as caught:
        wrong.check("a", WRONG_KEYS_MAX)
    assert caught.value.retry_after_ms == WRONG_KEYS_MS - WRONG_KEYS_MAX
    wrong.check("b", WRONG_KEYS_MAX)
    wrong.check("a", WRONG_KEYS_MS)
    wrong.count("a", WRONG_KEYS_MS)
    with pytest.raises(Throttled):  # the minute slides: the second of the ten counts still
        wrong.check("a", WRONG_KEYS_MS)


def test_peers_with_wrong_keys_are_not_remembered_without_bound():
    wrong = WrongKeys(peers_max=2)
    for _ in range(WRONG_KEYS_MAX):
        wrong.count("a", 0)
    wrong.count("b", 0)
    with pytest.raises(Throttled):
        wrong.check("a", 0)
    wrong.count("c", 0)
    wrong.check("a", 0)


def test_a_request_may_carry_other_cookies_and_several_of_ours():
    assert cookies({"cookie": "a=1; penstock=x;penstock=y; b"}) == ["x", "y"]
    assert cookies({"cookie": ";".join(["penstock=x"] * 100)}) == ["x"] * 8
    assert cookies({}) == []


def test_signing_in_sets_a_cookie_that_scripts_cannot_read_and_other_sites_cannot_send():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            cookie, answer = await sign_in(client, "reader")
            shown = answer.headers[b"set-cookie"].decode().split("; ")
            assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(shown)
            assert "Secure" not in shown
            assert len(cookie.partition("=")[2]) >= 43  # 256 bits
            assert cookie != (await sign_in(client, "reader"))[0]
            assert answer.headers[b"cache-control"] == b"no-store"
            told = answer.json
            assert (told["signed_in"], told["needs_key"]) == (True, True)
            assert (told["scopes"], told["prefixes"]) == (["read"], ["a."])
            assert "reader" not in answer.body.decode().replace('"read"', "")

    run(test)


def test_the_cookie_is_for_encrypted_connections_only_where_they_are():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            _, behind_proxy = await sign_in(client, origin="https://t.example")
            assert b"; Secure" in behind_proxy.headers[b"set-cookie"]
            _, plain = await sign_in(client, origin="http://t.example")
            assert b"; Secure" not in plain.headers[b"set-cookie"]
            client.application.context.is_tls = True
            _, encrypted = await sign_in(client)
            assert b"; Secure" in encrypted.headers[b"set-cookie"]

    run(test)


def test_a_cookie_does_what_its_key_may_do_and_no_more():
    async def test() -> None:
        async with serving(site=SITE, keys=KEYS) as client:
            root, _ = await sign_in(client)
            reader, _ = await sign_in(client, "reader")
            body = {"records": [{"data": 1}]}
            assert (await client.ask("POST", "/v0/topics/a.x", body, cookie=root)).status == 201
            assert (await client.ask("POST", "/v0/topics/b.x", body, cookie=root)).status == 201
            assert (await client.ask("GET", "/v0/topics/a.x", cookie=reader)).status == 200
            assert (await client.ask("GET", "/v0/topics/b.x", cookie=reader)).status == 403
            assert (await client.ask("POST", "/v0/topics/a.x", body, cookie=reader)).status == 403
            live = await client.ask("GET", "/v0/live?on=/topics", cookie=reader)
            assert live.status == 200
            page = await client.ask("GET", "/topics?format=json", cookie=reader)
            rows = page.json["sections"]["topics"]["topics"]
            assert [row["topic"] for row in rows] == ["a.x"]
            assert page.json["session"]["scopes"] == ["read"]
            assert page.json["session"]["signed_in"] is True
            assert page.headers[b"cache-control"] == b"no-store"
            socket = await client.ask("GET", "/v0/ws", upgrade="websocket", cookie=reader)
            assert socket.status == 101

    run(test)


def test_a_watch_made_with_a_cookie_is_opened_with_it():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            cookie, _ = await sign_in(client)
            other, _ = await sign_in(client, "reader")
            await client.ask("POST", "/v0/topics/a.x", {"records": [{"data": 1}]}, cookie=cookie)
            made = await client.ask("POST", "/v0/watch", {"topics": {"a.x": {}}}, cookie=cookie)
            url = made.json["stream_url"]
            assert client.start("GET", url).status == 401
            assert client.start("GET", url, cookie=other).status == 401
            assert client.start("GET", url, cookie=cookie).status == 200

    run(test)


@pytest.mark.parametrize("sender", FOREIGN)
def test_a_cookie_counts_for_nothing_on_a_request_of_another_origin(sender):
    async def test() -> None:
        async with serving(site=SITE, keys=KEYS) as client:
            cookie, _ = await sign_in(client)
            for path in ("/v0/topics", "/v0/session", "/topics"):
                assert await from_page(client, USUAL, "GET", path, cookie) == 200
                assert await from_page(client, sender, "GET", path, cookie) == 401
            for method, path in (
                ("GET", "/v0/ws"), ("GET", "/v0/live"), ("DELETE", "/v0/session"),
            ):  # fmt: skip
                assert await from_page(client, sender, method, path, cookie) in (401, 403)
            assert (await client.ask("GET", "/v0/session", cookie=cookie)).status == 200

    run(test)


def test_signing_out_ends_the_session_and_clears_the_cookie():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            cookie, _ = await sign_in(client)
            other, _ = await sign_in(client)
            ended = await client.ask("DELETE", "/v0/session", cookie=cookie)
            assert ended.json["ended"] is True
            assert b"Max-Age=0" in ended.headers[b"set-cookie"]
            assert (await client.ask("GET", "/v0/topics", cookie=cookie)).status == 401
            assert (await client.ask("DELETE", "/v0/session", cookie=cookie)).status == 401
            assert (await client.ask("GET", "/v0/topics", cookie=other)).status == 200
            by_key = await client.ask("DELETE", "/v0/session", authorization="Bearer root")
            assert by_key.json["ended"] is False

    run(test)


def test_a_session_is_over_after_its_time():
    async def test() -> None:
        clock = ManualClock()
        async with serving(keys=KEYS, clock=clock) as client:
            cookie, answer = await sign_in(client)
            assert answer.json["expires"] == clock.now_ms() + SESSION_MS
            clock.advance(SESSION_MS - 1)
            assert (await client.ask("GET", "/v0/session", cookie=cookie)).status == 200
            clock.advance(1)
            assert (await client.ask("GET", "/v0/session", cookie=cookie)).status == 401

    run(test)


def test_a_key_beside_a_cookie_counts_alone():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            cookie, _ = await sign_in(client)
            told = await client.ask(
                "GET", "/v0/session", cookie=cookie, authorization="Bearer reader"
            )
            assert (told.json["signed_in"], told.json["scopes"]) == (False, ["read"])
            wrong = await client.ask("GET", "/v0/session", cookie=cookie, authorization="Bearer x")
            assert wrong.status == 401

    run(test)


def test_wrong_keys_are_throttled_for_the_right_ones_too_until_a_minute_is_over():
    async def test() -> None:
        clock = ManualClock()
        async with serving(keys=KEYS, clock=clock) as client:
            for _ in range(2 * WRONG_KEYS_MAX):
                assert (await client.ask("POST", "/v0/session")).status == 401
            for _ in range(WRONG_KEYS_MAX):
                wrong = await client.ask("POST", "/v0/session", authorization="Bearer guess")
                assert wrong.status == 401
            right = await client.ask("POST", "/v0/session", authorization="Bearer root")
            assert right.status == 429
            assert right.headers[b"retry-after"] == b"60"
            clock.advance(WRONG_KEYS_MS)
            await sign_in(client)

    run(test)


def test_a_server_without_keys_has_nothing_to_sign_in_to():
    async def test() -> None:
        async with serving(site=SITE) as client:
            made = await client.ask("POST", "/v0/session", authorization="Bearer x")
            assert b"set-cookie" not in made.headers
            assert made.json["needs_key"] is False
            told = (await client.ask("GET", "/v0/session")).json
            assert told["scopes"] == ["read", "write", "delete", "admin"]
            assert (told["signed_in"], told["key"], told["expires"]) == (False, None, None)
            assert (await client.ask("DELETE", "/v0/session")).json["ended"] is False
            page = await client.ask("GET", "/topics?format=json")
            assert page.json["session"]["needs_key"] is False

    run(test)


def test_a_wrong_cookie_is_no_key():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            for cookie in ("penstock=", "penstock=guess", "penstock=root", "x=root"):
                answer = await client.ask("GET", "/v0/topics", cookie=cookie)
                assert answer.status == 401

    run(test)


async def opened(client: Client, path: str, **headers: str) -> FakeExchange:
    """A stream that a page of the server opens."""
    exchange = client.start("GET", path, accept="text/event-stream", **headers)
    await until(lambda: exchange.live is not None)
    return exchange


async def streams_of(client: Client, **headers: str) -> list[FakeExchange]:
    """One stream of each kind."""
    made = await client.ask("POST", "/v0/watch", {"topics": {"a.t": {}}}, **headers)
    paths = (made.json["stream_url"], "/v0/live?on=/topics/a.t", "/v0/topics/a.q/work?node=n")
    found = [await opened(client, path, **headers) for path in paths]
    return [*found, client.start("GET", "/v0/ws", upgrade="websocket", **headers)]


def is_closed(exchange: FakeExchange) -> bool:
    return bool(exchange.live.closed)


async def with_streams(client: Client) -> tuple[dict[str, str], list[FakeExchange]]:
    """The headers of a page that signed in, and its streams."""
    await client.engine.put_topic("a.t", {})
    await client.engine.put_topic("a.q", {"type": "queue"})
    cookie, _ = await sign_in(client)
    headers = {"cookie": cookie}
    return headers, await streams_of(client, **headers)


def test_signing_out_ends_the_streams_of_that_session_and_of_no_other():
    async def test() -> None:
        async with serving(keys=KEYS, site=SITE) as client:
            mine, streams = await with_streams(client)
            other, _ = await sign_in(client)
            others = await streams_of(client, cookie=other)
            others += await streams_of(client, authorization="Bearer root")
            assert not any(map(is_closed, streams + others))
            assert (await client.ask("DELETE", "/v0/session", **mine)).json["ended"]
            assert all(map(is_closed, streams))
            assert not any(map(is_closed, others))
            told = b"".join(exchange.live.text for exchange in streams[:3])
            assert told.count(b"the session has ended: sign in again") == 3
            assert streams[3].live.code == 1008
            await until(lambda: client.application.context.caps.streams == len(others))

    run(test)


def test_the_streams_of_a_session_end_with_it_after_twelve_hours():
    async def test() -> None:
        clock = ManualClock()
        async with serving(keys=KEYS, site=SITE, clock=clock) as client:
            client.application.context.sampler.stop()
            _, streams = await with_streams(client)
            clock.advance(SESSION_MS - 1)
            client.application.context.sampler.sample(0.0)
            assert not any(map(is_closed, streams))
            clock.advance(1)
            client.application.context.sampler.sample(0.0)
            assert all(map(is_closed, streams))

    run(test)


def test_a_session_that_ended_is_told_of_once():
    sessions = Sessions(sessions_max=1)
    sessions.open("a", GRANT, 0)
    assert sessions.take_ended(0) == set()
    sessions.open("b", GRANT, 0)
    assert len(sessions.take_ended(0)) == 1
    found = sessions.find(["b"], 0)
    assert found is not None
    sessions.end(found)
    sessions.end(found)
    assert sessions.take_ended(0) == {found.digest}
    assert sessions.take_ended(0) == set()


def test_a_digest_that_a_peer_tells_is_the_grant_of_the_same_key_or_refused():
    keys = parse_keys("root,looker:read")
    assert keys is not None
    looker = keys.find("looker")
    assert looker is not None
    assert keys.of_digest(looker.digest) is looker
    with pytest.raises(Unauthorized, match="give all nodes of a cluster the same keys"):
        keys.of_digest(b"\0" * 32)
