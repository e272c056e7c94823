"""Handlers about everything at once: the verdict, what waits and why."""

from __future__ import annotations

from penstock.protocol import part_answers
from penstock.protocol.routes import READ
from penstock.server.api.call import ROUTES, Call
from penstock.server.http.message import Answer
from penstock.server.overview.looks import verdict_of, waiting_of


@ROUTES.get("/v0/verdict", answer=part_answers.Verdict, scope=READ)
async def verdict(call: Call) -> Answer:
    """How things stand: one sentence, its level, and the facts behind it.

    A key with prefixes is told of the server's own load only.
    """
    return call.tell(await verdict_of(call.context, everything=not call.is_bounded))


@ROUTES.get("/v0/waiting", answer=part_answers.WaitingList, scope=READ)
async def waiting(call: Call) -> Answer:
    """Everything that waits, the longest first: why, and what would help."""
    reaches = call.reaches if call.is_bounded else None
    return call.tell(await waiting_of(call.context, reaches))
