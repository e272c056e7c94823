"""Clients that were not written for this protocol, through their ordinary ways."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest
from websockets.sync.client import connect

from tests.conformance.rows import row
from tests.conformance.streams import EventSource
from tests.conformance.wire import DEADLINE_S, Api, at, payloads

VERSIONS = ["--http1.1", "--http2-prior-knowledge"]


def curl(*arguments: str, text: str | None = None) -> str:
    """Run curl as a person would; its output."""
    assert shutil.which("curl"), "curl is needed: install it (apt install curl)"
    run = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "20", "--noproxy", "*", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@row("stock curl", "1.0 h2c")
@pytest.mark.parametrize("version", VERSIONS)
def test_curl_writes_and_reads(api, topic, version):
    url = api.address.url + at(topic)
    json_header = ["-H", "content-type: application/json"]
    sent = curl(version, *json_header, "-d", '{"records":[{"data":"hello"}]}', url)
    assert json.loads(sent)["seqs"] == [1]
    assert '"$seq":1,' in curl(version, "-X", "POST", url + "/diff")
    shown = curl(version, "-w", "\n%{http_code} %{http_version} %{content_type}", url)
    body, _, summary = shown.rpartition("\n")
    assert json.loads(body)["head_seq"] == 1
    wanted = "2" if "http2" in version else "1.1"
    assert summary.split()[:2] == ["200", wanted]
    assert summary.split()[2].startswith("application/json")


@row("stock curl")
@pytest.mark.parametrize("version", VERSIONS)
def test_curl_sends_a_large_file_and_gets_a_compressed_answer(api, topic, version, tmp_path):
    file = tmp_path / "records.json"
    file.write_text(json.dumps({"records": [{"data": "x" * 1000}] * 2000}))
    url = api.address.url + at(topic)
    header = ["-H", "content-type: application/json"]
    sent = curl(version, *header, "--data-binary", f"@{file}", url + "?return_seqs=false")
    assert json.loads(sent)["count"] == 2000
    page = curl(version, "--compressed", *header, "-d", '{"limit":1000}', url + "/diff")
    assert len(json.loads(page)["records"]) == 1000


@row("stock curl")
@pytest.mark.parametrize("version", VERSIONS)
def test_curl_fails_as_it_should(api, topic, version):
    url = api.address.url + at(topic)
    assert curl(version, "-o", "/dev/null", "-w", "%{http_code}", url) == "404"
    text = ["-H", "content-type: text/plain", "-d", "x"]
    assert curl(version, "-o", "/dev/null", "-w", "%{http_code}", *text, url) == "415"
    head = curl(version, "-i", "-X", "PATCH", url)
    assert "allow:" in head.lower()


@row("stock curl", "1.0 h2c")
@pytest.mark.parametrize("version", VERSIONS)
def test_curl_is_told_why_its_large_body_is_refused(launch, tmp_path, version):
    api = Api(launch(MAX_BODY_BYTES=1 << 20).address)
    file = tmp_path / "large"
    file.write_bytes(bytes(8 << 20))
    header = ["-H", "content-type: application/json", "-H", "expect:"]
    for _ in range(3):
        told = curl(version, *header, "--data-binary", f"@{file}", api.address.url + at("t"))
        assert json.loads(told)["error"]["code"] == "payload_too_large"


@row("stock curl", "1.4 frame format")
@pytest.mark.parametrize("version", VERSIONS)
def test_curl_follows_a_stream_and_an_event_source_reads_it(api, topic, version):
    api.write(topic, "first")
    arguments = ["curl", "-sS", "-N", "--noproxy", "*", version, api.address.url + api.watch(topic)]
    source = EventSource()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        events = []
        try:
            written = 0
            while len(events) < 6:
                events += source.feed(run.stdout.readline())
                caught_up = sum(event.type == "caught-up" for event in events)
                if caught_up > written and written < 2:
                    written += 1
                    api.write(topic, f"live {written}")
        finally:
            run.terminate()
    assert [event.type for event in events] == ["record", "caught-up"] * 3
    shown = [payloads(json.loads(event.data)) for event in events[::2]]
    assert shown == [["first"], ["live 1"], ["live 2"]]
    assert source.retry_ms == 2000


@row("stock curl", "1.6 work")
def test_curl_works_on_a_queue(api, topic):
    api.make(topic, type="queue")
    api.write(topic, "job")
    url = f"{api.address.url}{at(topic, 'work')}?node=curl"
    source = EventSource()
    with subprocess.Popen(
        ["curl", "-sS", "-N", "--noproxy", "*", url], stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        events = []
        try:
            while not events:
                events += source.feed(run.stdout.readline())
        finally:
            run.terminate()
    assert (events[0].type, events[0].last_event_id) == ("job", "1")
    assert json.loads(events[0].data)["data"] == "job"


@row("stock urllib")
def test_urllib_writes_reads_and_fails_with_a_body(api, topic):
    url = api.address.url + at(topic)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        url,
        data=b'{"records":[{"data":[1,2]}]}',
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with opener.open(request, timeout=DEADLINE_S) as response:
        assert response.status == 201
        assert json.load(response)["last_seq"] == 1
    with opener.open(url, timeout=DEADLINE_S) as response:
        assert json.load(response)["count"] == 1
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(url + "-absent", timeout=DEADLINE_S)
    with caught.value as error:
        assert error.code == 404
        assert json.load(error)["error"]["code"] == "topic_not_found"


@row("stock urllib", "stock EventSource")
def test_urllib_follows_a_stream(api, topic):
    api.write(topic, 1, 2)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    source = EventSource()
    events = []
    with opener.open(api.address.url + api.watch(topic), timeout=DEADLINE_S) as response:
        while len(events) < 2:
            events += source.feed(response.readline())
    assert [event.type for event in events] == ["record", "caught-up"]


@row("stock http.client")
def test_http_client_keeps_its_connection(api, topic):
    connection = http.client.HTTPConnection(*api.address, timeout=DEADLINE_S)
    try:
        for number in range(1, 21):
            connection.request(
                "POST",
                at(topic),
                body=json.dumps({"records": [{"data": number}]}),
                headers={"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            assert json.load(response)["last_seq"] == number
            response.read()
            assert not response.will_close
    finally:
        connection.close()


@row("stock EventSource", "1.4 resume")
def test_an_event_source_reconnects_with_its_last_id(api, topic):
    api.write(topic, *range(4))
    path = api.watch(topic, limit=1)
    first = _listen(api, path, None, 2)
    again = _listen(api, path, first[0].last_event_id, 3)
    assert [payloads(json.loads(event.data)) for event in first] == [[0], [1]]
    assert [payloads(json.loads(event.data)) for event in again] == [[1], [2], [3]]


def _listen(api, path, last_event_id, count):
    """The first record events that an EventSource would dispatch."""
    source, events = EventSource(), []
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    connection = http.client.HTTPConnection(*api.address, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            assert response.status == 200
            while len(events) < count:
                found = source.feed(response.readline())
                events += [event for event in found if event.type == "record"]
    finally:
        connection.close()
    return events


@row("stock EventSource")
@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_event_source_of_this_suite_follows_the_standard(size):
    text = (
        b": comment\n\nretry: 5\nretry: x\ndata:a\ndata: b\ndata\n\n"
        b"id: 1\r\nevent: e\r\ndata:  two\r\n\r\nevent: dropped\n\ndata: \xc3\xa9\rid\r\rdata: cut"
    )
    # A split inside a character would be the transport's; the parser is fed whole lines there.
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    source, events = EventSource(), []
    held = b""
    for chunk in chunks:
        held += chunk
        if held[-1] < 0x80:
            events += source.feed(held)
            held = b""
    assert [(e.type, e.data, e.last_event_id) for e in events] == [
        ("message", "a\nb\n", ""),
        ("e", " two", "1"),
        ("message", "é", ""),
    ]
    assert source.retry_ms == 5


@row("stock websockets")
def test_the_websockets_client_publishes_and_subscribes(api, topic):
    uri = api.address.url.replace("http:", "ws:") + "/v0/ws"
    with connect(uri, proxy=None) as ws:
        ws.send(json.dumps({"op": "publish", "topic": topic, "records": [{"data": "hi"}]}))
        assert json.loads(ws.recv(timeout=DEADLINE_S))["op"] == "ack"
        ws.send(json.dumps({"op": "subscribe", "topic": topic}))
        kinds = [json.loads(ws.recv(timeout=DEADLINE_S))["op"] for _ in range(3)]
        assert kinds == ["subscribed", "record", "caught_up"]


@row("stock websockets")
def test_the_websockets_client_may_refuse_compression(api, topic):
    uri = api.address.url.replace("http:", "ws:") + "/v0/ws"
    with connect(uri, compression=None, proxy=None) as ws:
        ws.send(json.dumps({"op": "ping", "request_id": "x" * 100_000}))
        assert json.loads(ws.recv(timeout=DEADLINE_S))["request_id"] == "x" * 100_000
    assert ws.close_code == 1000
