"""The wire is written once: server, client, CLI and documents are made from the same data."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from penstock.client import calls, space_calls, table_calls
from penstock.ingest import status as ingest_status
from penstock.protocol import answers, cluster_answers, requests
from penstock.protocol.commits import Commit, CommitRead, CommitWrite, Origin, Precondition
from penstock.protocol.decoding import decode
from penstock.protocol.metrics import Metrics
from penstock.protocol.routes import Route
from penstock.server.api.app import COMMIT_ROUTE, ROUTES, WRITE_ROUTE
from penstock.server.api.metrics import METRICS
from penstock.server.api.openapi import document, errors_of
from penstock.topics.core.record import LooseBody, PlainBody, WriteBody
from tools.reference.metrics import metrics_page

FIRST_ANSWERS: dict[type[Any], dict[str, Any]] = {
    answers.TopicPut: {"topic": "t", "created": True, "config": {}},
    answers.TopicState: {
        "topic": "t", "type": "log", "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0,
        "bytes": 0, "config": {}, "effective_priority": 0,
    },
    answers.TopicPage: {"topics": []},
    answers.TopicDeletion: {"topic": "t", "deleted": True, "routers_removed": []},
    answers.Written: {
        "topic": "t", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False,
        "deduped": False,
    },
    answers.Diff: {
        "topic": "t", "records": [{"$seq": 1, "$ts": 1, "data": 1}], "next_from_seq": 1,
        "head_seq": 1, "earliest_seq": 1, "caught_up": True,
    },
    answers.RecordDeletion: {
        "topic": "t", "deleted": 0, "earliest_seq": 1, "head_seq": 0, "count": 0, "bytes": 0,
    },
    answers.Claims: {"topic": "t", "claimed": [], "count": 0, "ready": 0},
    answers.Acked: {"topic": "t", "acked": 0, "skipped": [], "ready": 0, "in_flight": 0},
    answers.Nacked: {"topic": "t", "nacked": 0, "skipped": [], "ready": 0, "in_flight": 0},
    answers.Extended: {"topic": "t", "extended": 0, "skipped": [], "deadlines": {}},
    answers.RouterPage: {"routers": []},
    answers.RouterDeletion: {"router": "r", "deleted": False},
    answers.Health: {"status": "ok", "version": "0", "uptime_ms": 1},
    answers.Ready: {"status": "ready", "wal_replay_complete": True, "topics": 0},
    answers.CommitAccepted: {"seq": 1},
    answers.EntityState: {"entity": "e", "seq": 1, "doc": None},
    answers.EntityPage: {"entities": [], "head": 0},
    cluster_answers.ClusterState: {
        "cluster": "c", "member": "a", "underway": "",
        "members": [{
            "name": "a", "id": "01", "address": "a:1", "url": "", "state": "voter", "link": "self",
        }],
        "partitions": [{
            "partition": 0, "role": "leader", "term": 1, "leader": "a", "followers": [],
        }],
    },
    cluster_answers.ClusterChecks: {
        "nodes": [{"name": "a", "facts": {"version": "0", "now_ms": 1}}], "problems": [],
    },
    cluster_answers.MemberFile: {"file": {}},
    cluster_answers.MemberRemoval: {"member": "a", "removed": True},
    cluster_answers.LeadershipTransfer: {"partition": 0, "member": "a"},
    cluster_answers.PartitionComparison: {
        "partition": 0, "index": 1, "equal": True, "complete": False, "topics": 0, "records": 0,
        "not_compared": [], "members": [
            {"name": "a", "state": "equal", "differing": 0, "differs_in": []},
            {"name": "b", "state": "away", "problem": "no link"},
        ],
    },
}  # fmt: skip
"""What the first servers sent at least."""


@pytest.mark.parametrize("kind", FIRST_ANSWERS, ids=lambda kind: kind.__name__)
def test_a_client_understands_the_answer_of_the_oldest_server(kind: type[Any]) -> None:
    body = msgspec.json.encode(FIRST_ANSWERS[kind])
    assert isinstance(calls.reads(kind)(calls.HttpAnswer(200, {}, body)), kind)


@pytest.mark.parametrize("route", ROUTES.routes, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_knows_its_handler_answer_scope_and_errors(route: Route) -> None:
    if route not in (WRITE_ROUTE, COMMIT_ROUTE):  # answered by the application itself
        assert route.handler is not None
        assert route.name == route.handler.__name__
        assert (inspect.getdoc(route.handler) or "").startswith(route.summary)
    assert route.summary
    assert route.answer is not None or route.is_stream
    assert route.scopes or route.guard != "key" or not route.is_data
    assert all(kind.code and kind.status for kind in errors_of(route))
    assert (route.method in ("PUT", "POST")) or route.body is None


@pytest.mark.parametrize("route", ROUTES.routes, ids=lambda route: f"{route.method} {route.path}")
def test_an_answer_about_the_cluster_has_its_members_in_the_document(route: Route) -> None:
    if route.path.startswith("/v0/cluster"):
        assert isinstance(route.answer, type)
        assert issubclass(route.answer, msgspec.Struct)
        shown = document(ROUTES, "1")["components"]["schemas"]
        assert shown[route.answer.__name__]["properties"]


def test_a_body_has_one_description_for_decoder_and_document() -> None:
    shown = document(ROUTES, "1")["components"]["schemas"]
    for route in ROUTES.routes:
        if route.body is not None:
            members = set(shown[route.body.__name__]["properties"])
            assert members == set(route.body.__struct_encode_fields__)


def test_the_fast_decoders_of_a_write_have_the_fields_of_its_description() -> None:
    fields = requests.AppendBody.__struct_fields__
    assert {kind.__struct_fields__ for kind in (WriteBody, PlainBody, LooseBody)} == {fields}


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (calls.diff("t", from_seq=3, limit=None, node="n", wait_ms=5), requests.DiffBody),
        (calls.delete_records("t", before_seq=4, match="a*"), requests.DeleteBody),
        (calls.put_router("r", requests.RouterBody(source="a", dest="b")), requests.RouterBody),
        (calls.claim("t", "n", count=2, lease_ms=None), requests.ClaimBody),
        (calls.ack("t", "n", [1, 2]), requests.AckBody),
        (calls.nack("t", "n", [1], delay_ms=9, reason="late"), requests.NackBody),
        (calls.redrive("t", seqs=[1], to="u"), requests.RedriveBody),
        (calls.redrive("t", everything=True), requests.RedriveBody),
        (calls.discard_letters("t", reason=""), requests.LettersBody),
        (calls.extend("t", "n", [1], lease_ms=9), requests.ExtendBody),
        (calls.backup("here", wait_ms=1), requests.BackupBody),
        (table_calls.refresh("t", force=True, wait_ms=1), requests.RefreshBody),
        (table_calls.put_source("t", "a INT", key=["a"], url=None), requests.SourceBody),
        (
            space_calls.commit(
                "s",
                Commit(
                    "me", 2, (CommitWrite("e", set=None),), (CommitRead("f", 1, "/a"),),
                    preconditions=(Precondition(origin_committed=Origin("me", 1)),),
                ),
            ),
            Commit,
        ),
    ],
)  # fmt: skip
def test_the_server_decodes_what_the_client_encodes(
    call: calls.ApiCall[Any], kind: type[Any]
) -> None:
    found = decode(kind, call.request.body)
    assert msgspec.json.encode(found) == call.request.body


def test_a_record_without_meta_is_encoded_without_it() -> None:
    sent = b'{"$seq":1,"$ts":2,"$tag":"x","data":{"a": 1}}'
    record = msgspec.json.decode(sent, type=answers.StoredRecord)
    assert msgspec.json.encode(record) == sent
    assert (record.meta, record.meta_json, record.data) == (None, b"null", {"a": 1})
    null = sent.replace(b"}}", b'},"meta":null}')
    assert msgspec.json.encode(msgspec.json.decode(null, type=answers.StoredRecord)) == null


def test_the_record_of_the_client_is_that_of_the_protocol() -> None:
    import penstock

    assert penstock.Record is requests.Record
    schema = document(ROUTES, "1")["components"]["schemas"]["Record"]
    assert set(schema["properties"]) == set(penstock.Record.__struct_fields__)


def test_a_metric_is_declared_once_for_text_json_and_docs() -> None:
    declared = [*METRICS.metrics, *ingest_status.METRICS.metrics]
    names = [metric.name for metric in declared]
    assert len(names) == len(set(names))
    page = metrics_page()
    assert all(f"| `{name}` |" in page for name in names)
    metrics: Metrics[dict[str, int]] = Metrics()
    metrics.counter("x_total", "How many.", lambda source: source["x"], key="x")
    assert list(metrics.lines({"x": 3}))[-1] == "x_total 3"
    assert metrics.values({"x": 3}) == {"x": 3}
    assert [(each.name, each.kind, each.text) for each in metrics.metrics] == [
        ("x_total", "counter", "How many.")
    ]
