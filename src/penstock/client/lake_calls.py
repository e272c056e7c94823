"""The calls about the lake as data."""

from __future__ import annotations

import msgspec

from penstock.client.calls import ApiCall, query_text, quoted, reads
from penstock.client.wire import HttpRequest
from penstock.protocol import lake_answers


def show() -> ApiCall[lake_answers.LakeState]:
    """The lake and its newest snapshot."""
    return ApiCall(HttpRequest("GET", "/v0/lake"), reads(lake_answers.LakeState))


def snapshots(limit: int, before: int | None) -> ApiCall[lake_answers.LakeSnapshots]:
    """Snapshots, the newest first."""
    request = HttpRequest("GET", "/v0/lake/snapshots" + query_text(limit=limit, before=before))
    return ApiCall(request, reads(lake_answers.LakeSnapshots))


def tables(snapshot: int | None) -> ApiCall[lake_answers.LakeTables]:
    """The tables of a snapshot."""
    request = HttpRequest("GET", "/v0/lake/tables" + query_text(snapshot=snapshot))
    return ApiCall(request, reads(lake_answers.LakeTables))


def table(name: str, snapshot: int | None) -> ApiCall[lake_answers.LakeTable]:
    """One table at a snapshot."""
    request = HttpRequest("GET", f"/v0/lake/tables/{quoted(name)}" + query_text(snapshot=snapshot))
    return ApiCall(request, reads(lake_answers.LakeTable))


def files(name: str, snapshot: int | None) -> ApiCall[lake_answers.LakeFiles]:
    """The data files of a table."""
    path = f"/v0/lake/tables/{quoted(name)}/files" + query_text(snapshot=snapshot)
    return ApiCall(HttpRequest("GET", path), reads(lake_answers.LakeFiles))


def query(text: str, snapshot: int | None) -> ApiCall[lake_answers.QueryResult]:
    """A SELECT over one snapshot."""
    body = {"query": text} if snapshot is None else {"query": text, "snapshot": snapshot}
    request = HttpRequest("POST", "/v0/query", msgspec.json.encode(body))
    return ApiCall(
        request,
        reads(lake_answers.QueryResult),
        wait_ms=lake_answers.QUERY_MS_MAX,
        only_reads=True,
    )
