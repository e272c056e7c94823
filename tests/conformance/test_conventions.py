"""1.0 Global conventions: connections, content types, errors, payloads, names."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import (
    DEADLINE_S,
    Answer,
    at,
    blanks_outside_strings,
    done,
    records,
    router_at,
)

BODY_ROUTES = [
    ("PUT", "/v0/topics/{t}"),
    ("POST", "/v0/topics/{t}"),
    ("POST", "/v0/topics/{t}/diff"),
    ("POST", "/v0/topics/{t}/delete"),
    ("POST", "/v0/topics/{t}/claim"),
    ("POST", "/v0/topics/{t}/ack"),
    ("POST", "/v0/topics/{t}/nack"),
    ("POST", "/v0/topics/{t}/extend"),
    ("PUT", "/v0/routers/{t}"),
    ("POST", "/v0/watch"),
]
INVALID_NAMES = [
    "x" * 256,
    ".a",
    "-a",
    ":a",
    "_a",
    "a b",
    "a/b",
    "a>b",
    "ä",
    "a\n",
    "a*",
    "$a",
]


@row("1.0 keep-alive")
def test_a_connection_serves_many_requests(api, topic):
    connection = api.connect()
    try:
        api.exchange(connection, "PUT", at(topic))
        first = connection.sock
        for _ in range(3):
            assert api.exchange(connection, "GET", at(topic)).status == 200
        assert api.exchange(connection, "GET", "/v0/nowhere").status == 404
        assert api.exchange(connection, "POST", at(topic), b"{").status == 400
        assert api.exchange(connection, "GET", at(topic)).status == 200
        assert connection.sock is first, "the server closed the connection"
    finally:
        connection.close()


@row("1.0 keep-alive")
def test_pipelined_requests_are_answered_in_order(api, topic):
    api.make(topic)
    body = b'{"records":[{"data":%d}]}'
    head = f"POST {at(topic)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = b"".join(
        head.encode() + b"Content-Length: %d\r\n\r\n" % len(body % n) + body % n for n in range(8)
    )
    last = f"GET {at(topic)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.sendall(sent + last)
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200 ") == 9
    places = [received.index(b'"first_seq":%d,' % seq) for seq in range(1, 9)]
    assert places == sorted(places)
    assert [record["data"] for record in api.diff(topic)["records"]] == list(range(8))


def raw_request(method: str, path: str, body: object = None, *headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(content)}")
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *lines, *headers))
    return head.encode() + b"\r\n\r\n" + content


def pipelined(api, *requests: tuple[str, str, object]) -> list[int]:
    """The statuses of requests that are sent in one piece."""
    last = raw_request("GET", "/v0/health", None, "Connection: close")
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.sendall(b"".join(raw_request(*each) for each in requests) + last)
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    return [int(each[:3]) for each in received.split(b"HTTP/1.1 ")[1:-1]]


@row("1.0 keep-alive")
def test_pipelined_requests_do_what_they_would_do_one_after_another(api, name):
    made = name()
    answers = pipelined(
        api, ("PUT", at(made), {"type": "queue"}), ("POST", at(made), records("job"))
    )
    assert answers == [201, 200]
    assert api.request("GET", at(made)).json["type"] == "queue"
    answers = pipelined(
        api,
        ("DELETE", at(made), None),
        ("POST", at(made), records("kept")),
        ("POST", at(made, "diff"), {}),
        ("POST", at(made, "delete"), {"before_seq": 99}),
        ("POST", at(made), records("later")),
    )
    assert answers == [200, 201, 200, 200, 200]
    assert [record["data"] for record in api.diff(made)["records"]] == ["later"]
    new = name()
    assert pipelined(
        api, ("POST", at(new), records(1)), ("POST", at(new), records(2)), ("GET", at(new), None)
    ) == [201, 200, 200]


@row("1.0 keep-alive")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_request_is_what_its_method_says_whatever_came_before_it(api, topic, method):
    api.make(topic)
    other, write = raw_request(method, at(topic)), raw_request("POST", at(topic), records(1))
    cut = write.index(b"\r\n\r\n") + 4
    bodies = []
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for parts in ((other,), (write[:cut], write[cut:]), (other,)):
            for part in parts:
                raw.sendall(part)
            received = b""
            while b"}}" not in received:
                received += raw.recv(65536)
            bodies.append(json.loads(received.partition(b"\r\n\r\n")[2]))
    first, written, again = bodies
    assert written["count"] == 1
    assert again.keys() == first.keys()
    assert "first_seq" not in again


@row("1.0 keep-alive")
def test_who_asks_in_vain_for_another_protocol_goes_on_as_before(api, topic):
    asked = raw_request("GET", "/v0/health", None, "Connection: Upgrade", "Upgrade: h2c")
    write = raw_request("POST", at(topic), records(1))
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.sendall(asked)
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
        raw.sendall(write[:-5])
        raw.sendall(write[-5:])
        assert raw.recv(65536).startswith(b"HTTP/1.1 201 ")


@row("1.0 keep-alive")
def test_a_request_may_arrive_byte_by_byte_and_chunked(api, topic):
    body = json.dumps(records("slow")).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, bytes([byte])) for byte in body) + b"0\r\n\r\n"
    head = (
        f"POST {at(topic)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ).encode()
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head:
            raw.sendall(bytes([byte]))
        raw.sendall(chunks)
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 201 "), received
    assert api.diff(topic)["records"][0]["data"] == "slow"


@row("1.0 keep-alive")
def test_a_client_that_asks_before_it_sends_is_told_to_go_on(api, topic):
    body = json.dumps(records("x")).encode()
    head = (
        f"POST {at(topic)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        raw.sendall(head.encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 201 "), received


@row("1.0 bearer")
def test_without_keys_any_credentials_are_welcome(api, topic):
    assert api.with_key("whatever").put(at(topic)).status == 201
    assert api.get(at(topic), {"Authorization": "Basic eDp5"}).status == 200


@row("1.0 content type")
@pytest.mark.parametrize(("method", "path"), BODY_ROUTES)
@pytest.mark.parametrize("content_type", ["text/plain", "text/json", "x application/json", ""])
def test_a_body_that_is_not_declared_json_is_415(api, topic, method, path, content_type):
    answer = api.request(
        method, path.format(t=topic), b'{"records":[]}', {"Content-Type": content_type}
    )
    expect.refusal(answer, 415, "unsupported_media_type")


@row("1.0 content type")
def test_a_body_without_a_content_type_is_415(api, topic):
    body = json.dumps(records(1)).encode()
    connection = api.connect()
    try:
        connection.request("POST", at(topic), body=body)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
    finally:
        connection.close()
    expect.refusal(answer, 415, "unsupported_media_type")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.0 content type")
@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;x=1",
        "\t  application/json",
    ],
)
def test_a_content_type_that_starts_with_json_is_taken(api, topic, content_type):
    body = json.dumps(records(1)).encode()
    assert api.post(at(topic), body, {"Content-Type": content_type}).status == 201


@row("1.0 empty body")
def test_put_and_diff_need_no_body_and_no_content_type(api, topic):
    created = api.put(at(topic))
    assert expect.success(created, expect.PUT_TOPIC, 201)["config"] == expect.CONFIG_DEFAULTS
    api.write(topic, 1)
    answer = api.post(at(topic, "diff"))
    assert expect.success(answer, expect.DIFF)["next_from_seq"] == 1


@row("1.0 empty body")
def test_an_empty_body_with_a_content_type_is_taken_too(api, topic):
    assert api.put(at(topic), b"").status == 201
    assert api.post(at(topic, "diff"), b"").status == 200


@row("1.0 empty body", "1.0 wrong type")
@pytest.mark.parametrize(
    "path", ["/v0/topics/{t}", "/v0/topics/{t}/delete", "/v0/topics/{t}/ack", "/v0/watch"]
)
def test_other_calls_refuse_an_empty_body(api, topic, path):
    expect.refusal(api.post(path.format(t=topic), b""), 400, "invalid_request")


@row("1.0 unknown fields")
def test_unknown_fields_are_ignored(api, topic):
    odd = {"no_such_field": {"deep": [1]}}
    assert api.put(at(topic), odd).json["config"] == expect.CONFIG_DEFAULTS
    api.write(topic, 1, **odd)
    body = {"records": [{"data": 2, "colour": "red"}]}
    assert api.post(at(topic), body).status == 200
    assert len(api.diff(topic, **odd)["records"]) == 2
    assert api.post(at(topic, "delete"), {"before_seq": 1, **odd}).status == 200
    assert api.post("/v0/watch", {"topics": {topic: odd}, **odd}).status == 200
    assert api.put(router_at(topic), {"source": topic, "dest": topic + "-d", **odd}).status == 201
    assert api.put(at(topic), b'{"no_such_field":1e400}').status == 200
    assert api.put(at(topic), b'{"ttl_ms":1e400}').status == 400


@row("1.0 wrong type")
@pytest.mark.parametrize(("method", "path"), BODY_ROUTES)
@pytest.mark.parametrize(
    "body", [b"{", b"nonsense", b"[]", b'"text"', b"7", b'{"a":1}}', b"\xff\xfe", b"{'a':1}"]
)
def test_what_is_not_a_json_object_is_400(api, topic, method, path, body):
    answer = api.request(method, path.format(t=topic), body)
    expect.refusal(answer, 400, "invalid_request")


@row("1.0 wrong type")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v0/topics/{t}", {"records": {}}),
        ("/v0/topics/{t}", {"records": "x"}),
        ("/v0/topics/{t}", {"records": [1]}),
        ("/v0/topics/{t}", {"records": [{"data": 1, "tag": 7}]}),
        ("/v0/topics/{t}", {"records": [{"data": 1, "node": ["n"]}]}),
        ("/v0/topics/{t}", {"records": [{"data": 1, "meta": "m"}]}),
        ("/v0/topics/{t}", {"records": [{"data": 1}], "node": 5}),
        ("/v0/topics/{t}", {"records": [{"data": 1}], "idempotency_key": 5}),
        ("/v0/topics/{t}", {"records": [{"data": 1}], "create": "yes"}),
        ("/v0/topics/{t}", {"records": [{"data": 1}], "config": 3}),
        ("/v0/topics/{t}", {"records": [{"data": 1}], "disable_backpressure": 1}),
        ("/v0/topics/{t}/diff", {"from_seq": "0"}),
        ("/v0/topics/{t}/diff", {"from_seq": -1}),
        ("/v0/topics/{t}/diff", {"from_seq": 1.5}),
        ("/v0/topics/{t}/diff", {"limit": "10"}),
        ("/v0/topics/{t}/diff", {"limit": 2**32}),
        ("/v0/topics/{t}/diff", {"node": 1}),
        ("/v0/topics/{t}/diff", {"node": ["a", 1]}),
        ("/v0/topics/{t}/diff", {"include_tags": "true"}),
        ("/v0/topics/{t}/diff", {"include_meta": 1}),
        ("/v0/topics/{t}/diff", {"wait_ms": "5"}),
        ("/v0/topics/{t}/diff", {"max_batch_bytes": "5"}),
        ("/v0/topics/{t}/delete", {"before_seq": "1"}),
        ("/v0/topics/{t}/delete", {"before_seq": -1}),
        ("/v0/watch", {"topics": ["{t}"]}),
        ("/v0/watch", {"topics": {"{t}": {"from_seq": "1"}}}),
        ("/v0/watch", {"topics": {"{t}": {"tail": 1}}}),
        ("/v0/watch", {"topics": {"{t}": {}}, "limit": "1"}),
        ("/v0/watch", {"topics": {"{t}": {}}, "heartbeat_ms": "1"}),
        ("/v0/watch", {"topics": {"{t}": {}}, "consistency": "sometimes"}),
        ("/v0/watch", {"topics": {"{t}": {}}, "include_data": "x"}),
    ],
)
def test_a_field_of_the_wrong_type_is_400(api, topic, path, body):
    api.make(topic)
    text = json.dumps(body).replace("{t}", topic).encode()
    expect.refusal(api.post(path.format(t=topic), text), 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 0


@row("1.0 query booleans")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("true", True),
        ("1", True),
        ("false", False),
        ("0", False),
        ("no", True),
        ("", True),
        ("TRUE", True),
        ("False", True),
    ],
)
def test_a_query_boolean_that_is_none_is_the_default(api, topic, text, shown):
    body = done(api.post(at(topic), records(1), return_seqs=text))
    assert ("seqs" in body) is shown


@row("1.0 query numbers")
@pytest.mark.parametrize("text", ["x", "", "1.5", "-1", "99999999999999999999999"])
def test_a_query_number_that_is_none_is_the_default(api, topic, text):
    for suffix in "abc":
        api.make(f"{topic}-{suffix}")
    body = done(api.get("/v0/topics", prefix=topic, page_size=text))
    assert len(body["topics"]) == 3
    assert "next_cursor" not in body


@row("1.0 write performance", "1.0 performance")
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_write_tells_what_its_log_cost(api, topic, durability):
    api.make(topic, durability=durability)
    block = expect.performance(api.write(topic, 1))
    assert "wal_append_ms" in block
    if durability == "fsync":
        assert block["fsync_ms"] > 0
    else:
        assert block["fsync_ms"] == 0


@row("1.0 performance")
def test_a_diff_tells_how_many_records_it_looked_at(api, topic):
    api.write(topic, 1, 2, 3)
    block = expect.performance(api.diff(topic))
    assert block["records_scanned"] == 3


@row("1.0 error body")
def test_an_error_has_the_envelope_and_no_performance(api, topic):
    for answer in (
        api.get(at(topic)),
        api.get("/v0/routers/none"),
        api.post(at(topic), b"{"),
        api.get("/v0/watch/wid_none"),
    ):
        expect.envelope(answer.json)
    error = expect.envelope(api.post(at(topic), b"{").json)
    assert "detail" not in error or error["detail"], "an absent detail is left out"


@row("1.0 unknown route")
@pytest.mark.parametrize(
    "path", ["/v0", "/v0/", "/v1/topics", "/v0/nothing", "/v0/topics/a/b/c", "/nothing", "/topics/"]
)
def test_an_unknown_route_is_404(api, path):
    expect.refusal(api.get(path), 404, "not_found")


@row("1.0 wrong method")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v0/topics", {"GET"}),
        ("POST", "/v0/topics", {"GET"}),
        ("PATCH", "/v0/topics/a", {"GET", "PUT", "POST", "DELETE"}),
        ("GET", "/v0/topics/a/diff", {"POST"}),
        ("GET", "/v0/topics/a/delete", {"POST"}),
        ("GET", "/v0/topics/a/claim", {"POST"}),
        ("PUT", "/v0/topics/a/ack", {"POST"}),
        ("DELETE", "/v0/topics/a/nack", {"POST"}),
        ("GET", "/v0/topics/a/extend", {"POST"}),
        ("POST", "/v0/topics/a/work", {"GET"}),
        ("POST", "/v0/routers/a", {"GET", "PUT", "DELETE"}),
        ("PUT", "/v0/routers", {"GET"}),
        ("GET", "/v0/watch", {"POST"}),
        ("POST", "/v0/watch/wid", {"GET"}),
        ("POST", "/v0/health", {"GET"}),
        ("DELETE", "/v0/metrics", {"GET"}),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_ones(api, method, path, allowed):
    answer = api.request(method, path)
    expect.refusal(answer, 405, "method_not_allowed")
    named = {word.strip() for word in answer.headers["Allow"].split(",")}
    assert named - {"HEAD", "OPTIONS"} == allowed


RAW_PAYLOADS = [
    b"1.0",
    b"1e2",
    b"-0",
    b"123456789012345678901234567890",
    b"0.1000",
    b'{"b":1,"a":2,"b":3}',
    b'"\\u00e9\\/"',
    '"é😀"'.encode(),
    b'{ "spaced" : [ 1 , 2 ] }',
    b"null",
    b"[]",
    b'""',
]


@row("1.0 fidelity")
@pytest.mark.parametrize("raw", RAW_PAYLOADS)
def test_data_comes_back_as_the_bytes_that_were_written(api, topic, raw):
    written = api.post(at(topic), b'{"records":[{"data":%b,"meta":{"m":%b}}]}' % (raw, raw))
    assert written.status == 201, str(written)
    body = api.post(at(topic, "diff")).body
    assert b'"data":%b,"meta":{"m":%b}}' % (raw, raw) in body


@row("1.0 fidelity")
def test_every_way_out_keeps_the_bytes(api, topic, name):
    raw = b'{"z":1.50,"a":"\\u0041","big":12345678901234567890}'
    dest = name()
    api.make(topic, type="queue")
    api.route(name(), topic, dest)
    done(api.post(at(topic), b'{"records":[{"data":%b}]}' % raw))
    with EventStream(api.address, api.watch(topic)) as stream:
        assert raw.decode() in stream.next("record").text
    assert b'"data":' + raw in api.post(at(dest, "diff")).body
    assert b'"data":' + raw in api.post(at(topic, "claim"), {"node": "n", "max": 1}).body


@row("1.0 fidelity", "1.4 frame format")
def test_data_with_line_breaks_does_not_break_a_stream(api, topic):
    raw = b'{\n  "a": [\n    1\n  ]\n}'
    done(api.post(at(topic), b'{"records":[{"data":%b}]}' % raw))
    with EventStream(api.address, api.watch(topic)) as stream:
        frame = stream.next("record")
        assert frame.data["records"][0]["data"] == {"a": [1]}
        assert raw.decode() in frame.text
        stream.next("caught-up")


@row("1.0 compact")
def test_what_the_server_writes_is_compact(api, topic, name):
    router = name()
    answers = [
        api.put(at(topic), {"type": "queue"}),
        api.post(at(topic), records(1, 2)),
        api.get(at(topic)),
        api.get("/v0/topics", prefix=topic),
        api.post(at(topic, "diff")),
        api.put(router_at(router), {"source": topic, "dest": name()}),
        api.get(router_at(router)),
        api.get("/v0/routers", prefix=router),
        api.post(at(topic, "claim"), {"node": "n"}),
        api.post("/v0/watch", {"topics": {topic: {}}}),
        api.post(at(topic, "delete"), {"before_seq": 1}),
        api.get("/v0/health"),
        api.get("/v0/ready"),
        api.delete(router_at(router)),
        api.delete(at(topic)),
    ]
    for answer in answers:
        assert answer.status in (200, 201), str(answer)
        assert not blanks_outside_strings(answer.body), answer.body


@row("1.0 compact")
def test_clients_find_seqs_as_text(api, topic):
    api.write(topic, "a", "b")
    assert b'"$seq":2,' in api.post(at(topic, "diff")).body


@row("1.0 times")
def test_times_are_whole_milliseconds_and_seqs_start_at_one(api, topic):
    empty = done(api.put(at(topic))) and api.state(topic)
    assert (empty["head_seq"], empty["earliest_seq"], empty["next_seq"]) == (0, 1, 1)
    assert api.write(topic, "x")["first_seq"] == 1
    record = api.diff(topic)["records"][0]
    assert expect.recent_ms(record["$ts"])
    assert expect.whole(record["$seq"])
    assert expect.recent_ms(api.state(topic)["last_write_ts"])


@row("1.0 names")
@pytest.mark.parametrize("suffix", ["a", "A.b:c-9_", ".", ":", "-", "_", "x" * 230])
def test_valid_names_are_taken(api, topic, suffix):
    assert done(api.put(at(topic + suffix)))["topic"] == topic + suffix
    assert done(api.get(at(topic + suffix)))["topic"] == topic + suffix


@row("1.0 names")
def test_a_name_may_have_255_characters_and_may_be_percent_encoded(api, topic):
    longest = topic + "x" * (255 - len(topic))
    assert api.put(at(longest)).status == 201
    api.make(f"{topic}:a")
    assert done(api.get(f"/v0/topics/{topic}%3Aa"))["topic"] == f"{topic}:a"


@row("1.0 names")
@pytest.mark.parametrize("invalid", INVALID_NAMES)
def test_an_invalid_topic_name_is_400_where_it_would_be_created(api, invalid):
    path = at(invalid).replace("a/b", "a%2Fb")
    expect.refusal(api.put(path), 400, "invalid_request")
    expect.refusal(api.post(path, records(1)), 400, "invalid_request")


@row("1.0 names")
@pytest.mark.parametrize("invalid", INVALID_NAMES)
def test_reading_an_invalid_topic_name_is_just_404(api, invalid):
    path = at(invalid).replace("a/b", "a%2Fb")
    expect.refusal(api.get(path), 404, "topic_not_found")
    expect.refusal(api.post(path + "/diff", {}), 404, "topic_not_found")
    expect.refusal(api.post(path, records(1, create=False)), 404, "topic_not_found")
    assert done(api.delete(path))["deleted"] is False


@row("1.0 names")
@pytest.mark.parametrize("escaped", ["%ff", "a%00", "a%zz", "a%", "%C3%28"])
def test_escapes_that_stand_for_nothing_make_an_invalid_name(api, escaped):
    path = f"/v0/topics/{escaped}"
    expect.refusal(api.get(path), 404, "topic_not_found")
    expect.refusal(api.post(path + "/diff", {}), 404, "topic_not_found")
    expect.refusal(api.get(f"/v0/routers/{escaped}"), 404, "router_not_found")
    assert done(api.delete(path))["deleted"] is False
    assert done(api.delete(f"/v0/routers/{escaped}"))["deleted"] is False
    expect.refusal(api.put(path), 400, "invalid_request")
    expect.refusal(api.post(path, records(1)), 400, "invalid_request")


@row("1.0 names")
def test_a_router_name_may_have_an_arrow(api, topic, name):
    router = f"{topic}>{topic}"
    assert api.route(router, topic, name())["router"] == router
    bad = {"source": topic, "dest": name()}
    for invalid in ("_x", ">x", "a b", "x" * 256):
        expect.refusal(api.put(router_at(invalid), bad), 400, "invalid_request")
        expect.refusal(api.get(router_at(invalid)), 404, "router_not_found")


@row("1.0 names")
def test_names_are_case_sensitive(api, topic):
    api.make(topic + "a")
    expect.refusal(api.get(at(topic + "A")), 404, "topic_not_found")


@row("1.0 wrong type", "1.0 fidelity")
@pytest.mark.parametrize(
    "raw",
    [
        b"NaN",
        b"Infinity",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"'x'",
        b'"a\nb"',
        b'"\x01"',
        b'"\\x41"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"tru",
        b"[1",
        b'"open',
    ],
)
def test_data_that_is_no_json_is_400_and_nothing_is_written(api, topic, raw):
    for body in (b'{"records":[{"data":%b}]}', b'{"records":[{"data":1,"meta":{"m":%b}}]}'):
        expect.refusal(api.post(at(topic), body % raw), 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.0 wrong type")
def test_data_that_is_nested_too_deep_is_refused_or_kept_and_harms_nobody(api, topic):
    api.make(topic)
    raw = b"[" * 50_000 + b"]" * 50_000
    answer = api.post(at(topic), b'{"records":[{"data":%b}]}' % raw)
    if answer.status == 200:
        assert b'"data":' + raw in api.post(at(topic, "diff")).body
    else:
        expect.refusal(answer, 400, "invalid_request")
    assert api.write(topic, "after")["count"] == 1


@row("1.0 keep-alive")
@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 64,
        b"NOISE\r\n\r\n",
        b"GET /v0/topics HTTP/9.9\r\n\r\n",
        b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n",
        b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    ],
    ids=["tls", "no request", "version", "negative", "no length", "large head", "bad frames"],
)
def test_noise_is_answered_with_an_end_and_harms_nobody(api, noise):
    with socket.create_connection(api.address, timeout=DEADLINE_S) as raw:
        received = b""
        with contextlib.suppress(ConnectionError):
            raw.sendall(noise)
            while chunk := raw.recv(65536):
                received += chunk
    assert b" 200 " not in received[:20]
    assert b" 500 " not in received[:20]
    assert api.get("/healthz").status == 200
