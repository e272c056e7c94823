"""Handlers about everything at once: the verdict, what waits and why."""

from __future__ import annotations

from typing import Final

from penstock.protocol import lake_answers, part_answers
from penstock.protocol.errors import PartNotFound, PartRefused, PartSilent
from penstock.protocol.routes import ADMIN, NUMBER, READ, TEXT, Param
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.warehouse import ERRORS
from penstock.server.http.message import Answer
from penstock.server.overview.commands import switch_stage
from penstock.server.overview.looks import (
    graph_shown,
    parts_list,
    pipeline_history,
    pipeline_of,
    verdict_of,
    waiting_of,
)

ALL: Final = 2**63
PART: Final = Param("part", TEXT, "Of this part, such as `ingest.a`; the most alive if not said.")


@ROUTES.get("/v0/verdict", answer=part_answers.Verdict, scope=READ)
async def verdict(call: Call) -> Answer:
    """How things stand: one sentence, its level, and the facts behind it.

    A key with prefixes is told of the server's own load only.
    """
    return call.tell(await verdict_of(call.context, everything=not call.is_bounded))


@ROUTES.get(
    "/v0/waiting",
    answer=part_answers.WaitingList,
    scope=READ,
    query=(Param("limit", NUMBER, "At most so many, 1 or more; all if not said."),),
)
async def waiting(call: Call) -> Answer:
    """Everything that waits, the longest first: why, and what would help. `total` counts all."""
    limit = max(call.query.number("limit", ALL), 1)
    reaches = call.reaches if call.is_bounded else None
    return call.tell(await waiting_of(call.context, reaches, limit))


@ROUTES.get("/v0/parts", answer=part_answers.PartList, scope=READ)
async def parts(call: Call) -> Answer:
    """Which parts run where, as they last reported themselves; away after five silent seconds."""
    call.check_unbounded()
    return call.tell(await parts_list(call.context))


@ROUTES.get(
    "/v0/pipeline",
    answer=part_answers.PipelineState,
    scope=READ,
    query=(PART,),
    errors=(PartNotFound,),
)
async def pipeline(call: Call) -> Answer:
    """The ingest pipeline: stages, bottleneck, memory, and the planner's decisions with reasons."""
    call.check_unbounded()
    return call.tell(await pipeline_of(call.context, call.query.text("part")))


@ROUTES.get(
    "/v0/pipeline/history",
    answer=part_answers.PipelineHistory,
    scope=READ,
    query=(PART, Param("since", NUMBER, "Only what is later, in ms since 1970.")),
    errors=(PartNotFound,),
)
async def pipeline_past(call: Call) -> Answer:
    """The pipeline second by second, of 15 minutes at most, as columns."""
    call.check_unbounded()
    query = call.query
    found = await pipeline_history(call.context, query.text("part"), query.number("since", 0))
    return call.tell(found)


@ROUTES.post(
    "/v0/pipeline/stages/{name}/hold",
    answer=part_answers.StageSwitched,
    scope=ADMIN,
    named="stage",
    query=(PART,),
    errors=(PartNotFound, PartRefused, PartSilent),
)
async def hold_stage(call: Call) -> Answer:
    """Hold a stage of the pipeline; the stages before it fill up and wait."""
    call.check_unbounded()
    found = await switch_stage(call.context, call.name, "hold", call.query.text("part"))
    return call.tell(found)


@ROUTES.post(
    "/v0/pipeline/stages/{name}/go",
    answer=part_answers.StageSwitched,
    scope=ADMIN,
    named="stage",
    query=(PART,),
    errors=(PartNotFound, PartRefused, PartSilent),
)
async def release_stage(call: Call) -> Answer:
    """Let a stage of the pipeline go on."""
    call.check_unbounded()
    found = await switch_stage(call.context, call.name, "go", call.query.text("part"))
    return call.tell(found)


@ROUTES.get("/v0/graph", answer=lake_answers.Graph, scope=READ, errors=ERRORS)
async def graph(call: Call) -> Answer:
    """What reads what: topics, spaces, lake tables and stream tables, with states and units."""
    call.check_unbounded()
    return call.tell(await graph_shown(call.context))
