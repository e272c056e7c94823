"""What web pages can do to a server without keys, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api, at, payloads
from tests.integration.server.browser import CHROMIUM, MUST_BE_HERE, Browser, browser, web_site

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not MUST_BE_HERE, reason="no Chromium, and no rights to install it"
)

SOCKET = """
    return await new Promise((done) => {
      const seen = [];
      const socket = new WebSocket('ws://%s/v0/ws');
      socket.onopen = () => {
        socket.send(JSON.stringify({op: 'subscribe', topic: 'private'}));
        socket.send(JSON.stringify({op: 'publish', topic: 'private', records: [{data: 'evil'}]}));
      };
      socket.onmessage = (event) => {
        seen.push(event.data);
        if (event.data.includes('"ack"')) done('open: ' + seen.join());
      };
      socket.onerror = () => done('refused');
    });
"""
POST = "return (await fetch('http://%s', {method: 'POST', mode: '%s'})).type;"
READ = "return (await fetch('%s')).status;"
WRITE = """
    const answer = await fetch('http://%s/v0/topics/private', {
      method: 'POST',
      headers: {'Content-Type': 'application/json', 'Idempotency-Key': 'k'},
      body: JSON.stringify({records: [{data: 'friendly'}]}),
    });
    return [answer.status, (await answer.json()).head_seq];
"""
EVENTS = """
    const made = await fetch('http://%s/v0/watch', {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({topics: {private: {}}}),
    });
    const url = 'http://%s' + (await made.json()).stream_url;
    return await new Promise((done) => {
      const events = new EventSource(url);
      events.addEventListener('record', (event) => { events.close(); done(event.data); });
    });
"""
ERROR = """
    const answer = await fetch('http://%s/v0/topics/nothing');
    return [answer.status, (await answer.json()).error.code];
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    with web_site() as port:
        yield port


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory, site: int) -> Iterator[Api]:
    """A server with a private topic that lets pages of friend.test in."""
    process = ServerProcess(
        tmp_path_factory.mktemp("server"), ALLOWED_ORIGINS=f"http://friend.test:{site}"
    )
    try:
        api = Api(process.start().address)
        api.write("private", "secret")
        api.make("jobs", type="queue")
        yield api
    finally:
        process.close()


def test_a_page_of_another_origin_neither_reads_nor_changes_anything(
    tab: Browser, site: int, served: Api
) -> None:
    api = served
    api.write("jobs", 1)
    here = f"127.0.0.1:{api.address.port}"
    assert tab.visit(f"http://evil.test:{site}/") == "a page"
    assert tab.run(f"{{{SOCKET % here}}}") == "refused"
    # The browser sends it without asking, and the page may not see the answer.
    assert tab.run(f"{{{POST % (f'{here}/v0/topics/private/delete', 'no-cors')}}}") == "opaque"
    assert "failed" in tab.run(f"{{{POST % (f'{here}/v0/warehouse/drain', 'cors')}}}")
    assert "failed" in tab.run(f"{{{READ % f'http://{here}/v0/topics/private'}}}")
    assert "failed" in tab.run(f"{{{WRITE % here}}}")
    work = f"http://{here}/v0/topics/jobs/work?node=evil"
    tab.run(f"{{return await fetch('{work}', {{mode: 'no-cors'}}).then(() => 'sent');}}")
    assert payloads(api.diff("private")) == ["secret"]
    jobs = api.get(at("jobs")).json["queue"]
    assert (jobs["ready"], jobs["in_flight"]) == (1, 0)
    metrics = api.get("/v0/metrics", {"Accept": "application/json"}).json
    assert metrics["queue_leases_in_flight"] == 0


def test_a_page_whose_name_leads_to_the_server_reads_nothing(tab: Browser, served: Api) -> None:
    here = f"rebound.test:{served.address.port}"
    assert "foreign_host" in tab.visit(f"http://{here}/v0/topics/private")
    assert tab.run(f"{{{READ % '/v0/topics/private'}}}") == 421
    assert tab.run(f"{{{SOCKET % here}}}") == "refused"
    assert payloads(served.diff("private")) == ["secret"]


def test_a_page_that_was_let_in_works_and_so_does_the_servers_own(
    tab: Browser, site: int, served: Api
) -> None:
    here = f"127.0.0.1:{served.address.port}"
    tab.visit(f"http://friend.test:{site}/")
    assert tab.run(f"{{{WRITE % here}}}") == [200, 2]
    assert "friendly" in tab.run(f"{{{EVENTS % (here, here)}}}")
    assert tab.run(f"{{{ERROR % here}}}") == [404, "topic_not_found"]
    assert "open" in tab.run(f"{{{SOCKET % here}}}")
    tab.visit(f"http://{here}/healthz")
    assert tab.run(f"{{{WRITE % here}}}") == [200, 2]
    assert "evil" in tab.run(f"{{{SOCKET % here}}}")
