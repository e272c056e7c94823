"""2 Auth: keys, scopes, prefixes, and where a token may stand in the query."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import Api, at, done, payloads, records, router_at

KEYS = ",".join(
    [
        "full",
        "reader:read",
        "writer:w",
        "both:RW",
        "deleter:del",
        "boss:a",
        "mixed:r+Delete",
        "team::team-|crew-",
        "teamreader:read:team-",
        "plus+key",
    ]
)
SCOPES = {
    "full": "rwda",
    "reader": "r",
    "writer": "w",
    "both": "rw",
    "deleter": "d",
    "boss": "a",
    "mixed": "rd",
}
CALLS = [
    ("GET", "/v0/topics", None, "r"),
    ("GET", "/v0/topics/{t}", None, "r"),
    ("GET", "/v0/routers", None, "r"),
    ("GET", "/v0/routers/{t}", None, "r"),
    ("GET", "/v0/metrics", None, "r"),
    ("POST", "/v0/topics/{t}/diff", {}, "r"),
    ("POST", "/v0/watch", {"topics": {"{t}": {}}}, "r"),
    ("POST", "/v0/topics/{t}", {"records": [{"data": 1}]}, "w"),
    ("POST", "/v0/topics/{t}/ack", {"node": "n", "seqs": [1]}, "w"),
    ("POST", "/v0/topics/{t}/nack", {"node": "n", "seqs": [1]}, "w"),
    ("POST", "/v0/topics/{t}/extend", {"node": "n", "seqs": [1], "lease_ms": 100}, "w"),
    ("POST", "/v0/topics/{t}/claim", {"node": "n"}, "rw"),
    ("POST", "/v0/topics/{t}/delete", {"before_seq": 1}, "d"),
    ("DELETE", "/v0/topics/{t}", None, "d"),
    ("DELETE", "/v0/routers/{t}", None, "d"),
    ("PUT", "/v0/topics/{t}", {}, "a"),
    ("PUT", "/v0/routers/{t}", {"source": "{t}", "dest": "{t}-dest"}, "a"),
]


@pytest.fixture(scope="module")
def secured(launch) -> Api:
    """A client of a server with keys; it has the key that may do everything."""
    return Api(launch(API_KEYS=KEYS).address, "full")


def _filled(body, topic):
    if isinstance(body, dict):
        return {_filled(key, topic): _filled(value, topic) for key, value in body.items()}
    return body.replace("{t}", topic) if isinstance(body, str) else body


@row("1.0 bearer")
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer ", "Bearer wrong", "Basic full", "full"]
)
def test_without_a_known_key_everything_is_401(secured, topic, header):
    headers = {} if header is None else {"Authorization": header}
    nobody = secured.with_key(None)
    for method, path, body, _ in CALLS:
        answer = nobody.request(method, path.format(t=topic), _filled(body, topic), headers)
        expect.refusal(answer, 401, "unauthorized")


@row("2 auth first")
def test_401_comes_before_404_and_405(secured):
    nobody = secured.with_key(None)
    expect.refusal(nobody.get("/v0/nowhere"), 401, "unauthorized")
    expect.refusal(nobody.request("PATCH", "/v0/topics"), 401, "unauthorized")
    expect.refusal(nobody.get("/v0/topics/%ff"), 401, "unauthorized")
    expect.refusal(secured.get("/v0/nowhere"), 404, "not_found")
    expect.refusal(secured.request("PATCH", "/v0/topics"), 405, "method_not_allowed")


@row("2 scopes", "2 keys")
@pytest.mark.parametrize(("method", "path", "body", "needed"), CALLS)
@pytest.mark.parametrize("key", SCOPES)
def test_every_call_needs_its_scope(secured, topic, key, method, path, body, needed):
    answer = secured.with_key(key).request(method, path.format(t=topic), _filled(body, topic))
    if set(needed) <= set(SCOPES[key]):
        assert answer.status not in (401, 403), str(answer)
    else:
        expect.refusal(answer, 403, "forbidden")


@row("2 scopes")
@pytest.mark.parametrize("key", SCOPES)
def test_a_work_stream_needs_read_and_write(secured, topic, key):
    secured.make(topic, type="queue")
    headers = {"Authorization": f"Bearer {key}"}
    with EventStream(secured.address, at(topic, "work") + "?node=n", headers) as stream:
        if set("rw") <= set(SCOPES[key]):
            assert stream.status == 200
        else:
            expect.refusal(stream.answer(), 403, "forbidden")


@row("2 scopes", "1.2 write config")
def test_an_inline_config_that_creates_needs_admin(secured, topic):
    writer = secured.with_key("writer")
    answer = writer.post(at(topic), records(1, config={"ttl_ms": 60_000}))
    expect.refusal(answer, 403, "forbidden")
    expect.refusal(secured.get(at(topic)), 404, "topic_not_found")
    assert writer.post(at(topic), records(1)).status == 201
    assert writer.post(at(topic), records(1, config={"ttl_ms": 60_000})).status == 200


@row("2 scopes", "1.2 write create")
@pytest.mark.parametrize(
    "said", [{"create": False, "config": {}}, {"config": {"auto_create": False}}]
)
def test_an_inline_config_that_creates_nothing_needs_no_admin(secured, topic, said):
    for asker in (secured, secured.with_key("writer")):
        answer = asker.post(at(topic), records(1, **said))
        expect.refusal(answer, 404, "topic_not_found")
    with Socket(secured.address, key="writer") as ws:
        refused = ws.ask("publish", "error", topic=topic, records=[{"data": 1}], **said)
        assert refused["code"] == "topic_not_found"


@row("2 prefixes", "2 keys")
def test_a_key_with_prefixes_sees_only_topics_below_them(secured, topic):
    team = secured.with_key("team")
    for prefix in ("team-", "crew-"):
        assert team.put(at(prefix + topic)).status == 201
        assert team.post(at(prefix + topic), records(1)).status == 200
    for answer in (
        team.put(at(topic)),
        team.get(at(topic)),
        team.post(at(topic), records(1)),
        team.post(at(topic, "diff")),
        team.post(at(topic, "claim"), {"node": "n"}),
        team.post(at(topic, "delete"), {"before_seq": 1}),
        team.delete(at(topic)),
    ):
        expect.refusal(answer, 403, "forbidden")


@row("2 prefixes")
def test_one_bad_topic_refuses_a_whole_watch(secured, topic):
    team = secured.with_key("team")
    team.make("team-" + topic)
    secured.make(topic)
    body = {"topics": {"team-" + topic: {}, topic: {}}}
    expect.refusal(team.post("/v0/watch", body), 403, "forbidden", {"topic": topic})
    answer = team.post("/v0/watch", body, lenient="true")
    expect.refusal(answer, 403, "forbidden", {"topic": topic})
    assert team.post("/v0/watch", {"topics": {"team-" + topic: {}}}).status == 200


@row("2 prefixes")
@pytest.mark.parametrize("end", ["source", "dest"])
def test_both_ends_of_a_router_must_be_below_the_prefixes(secured, topic, name, end):
    team = secured.with_key("team")
    inside = {"source": "team-" + name(), "dest": "crew-" + name()}
    outside = {**inside, end: topic}
    answer = team.put(router_at("team-" + topic), outside)
    expect.refusal(answer, 403, "forbidden", {"topic": topic})
    done(secured.put(router_at(topic), outside))
    expect.refusal(team.get(router_at(topic)), 403, "forbidden")
    expect.refusal(team.delete(router_at(topic)), 403, "forbidden")
    assert secured.get(router_at(topic)).status == 200


@row("2 prefixes", "1.3 repoint")
@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_router_that_leads_outside_is_refused_without_its_ends(secured, topic, name, end):
    team, inside = secured.with_key("team"), {"source": "team-" + topic, "dest": "crew-" + topic}
    foreign, router = "hidden-" + topic, name()
    secured.route(router, **{**inside, end: foreign})
    for answer in (
        team.get(router_at(router)),
        team.delete(router_at(router)),
        team.put(router_at(router), inside),
    ):
        expect.refusal(answer, 403, "forbidden")
        assert foreign not in answer.body.decode(), str(answer)
    told = expect.refusal(secured.put(router_at(router), inside), 409, "topic_exists_incompatible")
    assert told[f"existing_{end}"] == foreign


@row("2 prefixes", "1.3 repoint")
def test_a_router_within_the_prefixes_tells_its_ends_when_it_is_to_have_others(secured, topic):
    team, source, dest = secured.with_key("team"), "team-" + topic, "crew-" + topic
    team.route(topic, source, dest)
    answer = team.put(router_at(topic), {"source": source, "dest": dest + "-new"})
    detail = {
        "router": topic,
        "reason": "router_repoint_forbidden",
        "existing_source": source,
        "existing_dest": dest,
    }
    expect.refusal(answer, 409, "topic_exists_incompatible", detail)


@row("2 prefixes", "1.3 cycle")
def test_a_cycle_shows_only_topics_that_a_key_may_see(secured, topic, name):
    first, foreign, last = "team-" + topic, "hidden-" + topic, "crew-" + topic
    secured.route(name(), first, foreign)
    secured.route(name(), foreign, last)
    body = {"source": last, "dest": first}
    answer = secured.with_key("team").put(router_at(topic), body)
    expect.refusal(answer, 409, "router_cycle", {"cycle": [last, first, "…", last]})
    assert foreign not in answer.body.decode(), str(answer)
    answer = secured.put(router_at(topic), body)
    expect.refusal(answer, 409, "router_cycle", {"cycle": [last, first, foreign, last]})


@row("2 prefixes", "1.3 fan-in")
def test_a_second_source_is_refused_without_the_router_of_the_first(secured, topic, name):
    dest, hidden = "team-" + topic, "hidden-router-" + topic
    secured.route(hidden, name(), dest)
    body = {"source": "crew-" + topic, "dest": dest}
    answer = secured.with_key("team").put(router_at(topic), body)
    detail = {"topic": dest, "reason": "router_dest_fan_in"}
    expect.refusal(answer, 409, "topic_exists_incompatible", detail)
    assert hidden not in answer.body.decode(), str(answer)


@row("2 prefixes", "1.2 DELETE")
def test_a_topic_that_goes_takes_routers_with_it_that_a_key_is_not_told_of(secured, topic, name):
    source, hidden = "team-" + topic, ("in-" + topic, "out-" + topic)
    secured.route(topic, source, "crew-" + topic)
    secured.route(hidden[0], name(), source)
    secured.route(hidden[1], source, name())
    gone = done(secured.with_key("team").delete(at(source)))
    assert gone["routers_removed"] == [topic]
    for router in (topic, *hidden):
        expect.refusal(secured.get(router_at(router)), 404, "router_not_found")


@row("2 prefixes")
def test_a_router_within_the_prefixes_is_allowed(secured, topic):
    team = secured.with_key("team")
    body = {"source": "team-" + topic, "dest": "crew-" + topic}
    assert team.put(router_at(topic), body).status == 201
    assert team.get(router_at(topic)).status == 200
    assert done(team.delete(router_at(topic)))["deleted"] is True


@row("2 prefixes")
def test_lists_show_only_what_a_key_may_see(secured, topic, name):
    secured.make("team-" + topic)
    secured.make("other-" + topic)
    secured.route("in-" + topic, "team-" + topic, "crew-" + topic)
    secured.route("out-" + topic, "team-" + topic, name())
    team = secured.with_key("team")
    topics = [row_["topic"] for row_ in done(team.get("/v0/topics", page_size=1000))["topics"]]
    assert "team-" + topic in topics
    assert all(found.startswith(("team-", "crew-")) for found in topics)
    routers = [row_["router"] for row_ in done(team.get("/v0/routers", page_size=1000))["routers"]]
    assert "in-" + topic in routers
    assert "out-" + topic not in routers


@row("2 prefixes", "1.2 list pages")
def test_a_filtered_list_is_paged_over_what_is_shown(secured, topic):
    for suffix in "abc":
        secured.make(f"team-{topic}:{suffix}")
        secured.make(f"other-{topic}:{suffix}")
    reader = secured.with_key("teamreader")
    first = done(reader.get("/v0/topics", prefix=f"team-{topic}", page_size=2))
    assert len(first["topics"]) == 2
    rest = done(
        reader.get("/v0/topics", prefix=f"team-{topic}", page_size=2, cursor=first["next_cursor"])
    )
    assert [row_["topic"] for row_ in rest["topics"]] == [f"team-{topic}:c"]
    assert "next_cursor" not in rest


@row("1.0 token")
def test_a_token_in_the_query_opens_the_two_streams(secured, topic):
    secured.make(topic, type="queue")
    secured.write(topic, 1)
    with EventStream(secured.address, secured.watch(topic) + "?token=full") as stream:
        assert payloads(stream.next("record").data) == [1]
    with EventStream(secured.address, at(topic, "work") + "?node=n&token=full") as stream:
        assert stream.next("job").data["$seq"] == 1


@row("1.0 token")
def test_a_token_is_form_decoded_and_the_first_one_counts(secured, topic):
    secured.make(topic, type="queue")
    work = at(topic, "work") + "?node=n&"
    for query, status in (
        ("token=plus%2Bkey", 200),
        ("token=plus+key", 401),
        ("token=full&token=wrong", 200),
        ("token=wrong&token=full", 401),
        ("token=", 401),
    ):
        with EventStream(secured.address, work + query) as stream:
            assert stream.status == status, query


@row("1.0 token")
@pytest.mark.parametrize("path", ["/v0/topics", "/v0/topics/x", "/v0/routers", "/v0/metrics"])
def test_a_token_in_the_query_opens_nothing_else(secured, path):
    expect.refusal(secured.with_key(None).get(path, token="full"), 401, "unauthorized")


@row("1.0 token")
def test_a_token_in_the_query_writes_nothing(secured, topic):
    answer = secured.with_key(None).post(at(topic), records(1), token="full")
    expect.refusal(answer, 401, "unauthorized")


@row("2 watch key")
def test_a_session_belongs_to_the_key_that_made_it(secured, topic):
    secured.make(topic)
    path = secured.watch(topic)
    expect.refusal(secured.with_key(None).get(path), 401, "unauthorized")
    expect.refusal(secured.with_key("reader").get(path), 401, "unauthorized")
    expect.refusal(secured.with_key(None).get(path, token="reader"), 401, "unauthorized")
    with EventStream(secured.address, path, {"Authorization": "Bearer full"}) as stream:
        stream.next("caught-up")


@row("2 watch key", "1.4 GET unknown")
@pytest.mark.parametrize("key", [None, "full", "wrong"])
def test_an_unknown_session_is_404_whatever_the_credentials(secured, key):
    answer = secured.with_key(key).get("/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA")
    expect.refusal(answer, 404, "not_found")


@row("1.5 auth")
@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_socket_needs_a_key_at_the_upgrade(secured, key):
    with pytest.raises(InvalidStatus) as caught:
        Socket(secured.address, key=key)
    assert caught.value.response.status_code == 401


@row("1.5 auth", "1.0 token")
def test_a_socket_takes_no_token_from_the_query(secured):
    answer = secured.with_key(None).get(
        "/v0/ws",
        {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
        },
        token="full",
    )
    expect.refusal(answer, 401, "unauthorized")


@row("1.5 auth")
def test_a_browser_offers_its_key_as_a_subprotocol(secured):
    token = base64.urlsafe_b64encode(b"full").decode().rstrip("=")
    with Socket(secured.address, subprotocols=["penstock.v0", f"bearer.{token}"]) as ws:
        assert ws.raw.subprotocol == "penstock.v0", "the key is not echoed"
        ws.send("ping")
        ws.next("pong")
    wrong = base64.urlsafe_b64encode(b"wrong").decode().rstrip("=")
    with pytest.raises(InvalidStatus) as caught:
        Socket(secured.address, subprotocols=["penstock.v0", f"bearer.{wrong}"])
    assert caught.value.response.status_code == 401


@row("1.5 auth", "2 scopes")
def test_every_command_of_a_socket_needs_its_scope(secured, topic):
    secured.make(topic)
    publish = {"topic": topic, "records": [{"data": 1}]}
    with Socket(secured.address, key="reader") as ws:
        ws.send("publish", request_id=1, **publish)
        error = ws.next("error")
        assert (error["request_id"], error["code"]) == (1, "forbidden")
        ws.send("subscribe", topic=topic)
        ws.next("subscribed")
    with Socket(secured.address, key="writer") as ws:
        ws.send("subscribe", request_id=2, topic=topic)
        assert ws.next("error")["code"] == "forbidden"
        ws.send("publish", **publish)
        assert ws.next("ack")["first_seq"] == 1
        new = {**publish, "topic": topic + "-new", "config": {"ttl_ms": 60_000}}
        ws.send("publish", **new)
        assert ws.next("error")["code"] == "forbidden"


@row("1.5 auth", "2 prefixes")
def test_a_socket_sees_only_topics_below_its_prefixes(secured, topic):
    secured.make(topic)
    with Socket(secured.address, key="team") as ws:
        ws.send("subscribe", topic=topic)
        assert ws.next("error")["code"] == "forbidden"
        ws.send("publish", topic=topic, records=[{"data": 1}])
        assert ws.next("error")["code"] == "forbidden"
        ws.send("publish", topic="team-" + topic, records=[{"data": 1}])
        ws.next("ack")


@row("1.7 probe auth")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v0/health", "/v0/ready"])
def test_probes_need_no_key(secured, path):
    assert secured.with_key(None).get(path).status == 200


@row("1.7 probe auth", "2 open bind")
def test_an_open_door_with_keys_starts_and_its_probes_may_need_one(launch):
    process = launch(ready=False, HOST="0.0.0.0", API_KEYS="full", PROBE_AUTH=1)
    process.launch()
    api = Api(process.listening()._replace(host="127.0.0.1"))
    for path in ("/healthz", "/readyz", "/v0/health", "/v0/ready"):
        expect.refusal(api.get(path), 401, "unauthorized")
        assert api.with_key("full").get(path).status in (200, 503)


@row("2 bad scope")
def test_an_unknown_scope_refuses_to_start(launch):
    process = launch(ready=False, API_KEYS="good,bad:read+fly")
    process.launch()
    assert process.wait() != 0


@row("2 open bind")
def test_an_open_door_without_keys_refuses_to_start(launch):
    process = launch(ready=False, HOST="0.0.0.0")
    process.launch()
    assert process.wait() != 0


@row("2 open bind")
def test_an_open_door_on_purpose_starts(launch):
    process = launch(ready=False, HOST="0.0.0.0", ALLOW_INSECURE_NO_AUTH=1)
    process.launch()
    address = process.listening()
    assert Api(address._replace(host="127.0.0.1")).get("/healthz").status == 200


@row("1.0 token")
def test_a_token_may_be_percent_encoded_whole(secured, topic):
    secured.make(topic, type="queue")
    token = "".join(f"%{byte:02X}" for byte in b"full")
    with EventStream(
        secured.address, f"{at(topic, 'work')}?node={quote('n')}&token={token}"
    ) as stream:
        assert stream.status == 200
