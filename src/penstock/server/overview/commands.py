"""Commands to parts: a record of the part's topic of commands, answered by another there.

Commands travel like everything else, so a part needs no port for them, and what was asked of it is
there to be read.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from penstock.kernel.units import format_ms
from penstock.protocol.errors import PartNotFound, PartRefused, PartSilent
from penstock.protocol.own_topics import commands_topic
from penstock.protocol.part_answers import (
    ANSWER_TAG,
    COMMAND_TAG,
    PartAnswer,
    PartCommand,
    StageSwitched,
)
from penstock.server.overview.looks import pipeline_of
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import ReadRequest

if TYPE_CHECKING:
    from penstock.server.api.call import Context

ANSWER_MS: Final = 5_000
"""How long a part has for its answer."""
_decode: Final = msgspec.json.Decoder(PartAnswer).decode
_STAGE_NAME: Final = re.compile(r"[a-z][a-z_]{0,63}")


async def switch_stage(
    context: Context, stage: str, action: str, part: str | None = None
) -> StageSwitched:
    """Have a stage of the pipeline held, or let go on; returns when the part has done it."""
    if not _STAGE_NAME.fullmatch(stage):  # no look at the parts is needed to say so
        raise PartRefused(f"there is no stage {stage!r}: GET /v0/pipeline lists them")
    pipeline = await pipeline_of(context, part)
    if pipeline.part is None:
        raise PartNotFound(part or "ingest")
    known = {each.name: each for each in pipeline.stages}
    if stage not in known:
        names = ", ".join(known)
        raise PartRefused(f"{pipeline.part} has no stage {stage!r}: its stages are {names}")
    if not known[stage].may_hold:
        able = ", ".join(each.name for each in pipeline.stages if each.may_hold) or "none"
        raise PartRefused(f"stage {stage!r} cannot be held; those that can: {able}")
    answer = await ask(context, pipeline.part, action, stage)
    context.looks.forget()
    if not answer.done:
        raise PartRefused(answer.text)
    return StageSwitched(stage=stage, held=answer.held, part=pipeline.part, text=answer.text)


async def ask(context: Context, part: str, action: str, stage: str) -> PartAnswer:
    """Write a command and wait for its answer; `PartSilent` if none comes in time."""
    command = PartCommand(id=uuid4().hex, action=action, stage=stage)
    record = {"data": msgspec.to_builtins(command), "tag": COMMAND_TAG}
    engine, topic = context.engine, commands_topic(part)
    write = parse_write(msgspec.json.encode({"records": [record]}), engine.limits)
    from_seq = (await engine.append(topic, write)).last_seq
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ANSWER_MS / 1_000
    while (left_s := until_s - loop.time()) > 0:
        request = ReadRequest(from_seq, include_tags=True, wait_ms=max(1, int(left_s * 1_000)))
        page = await engine.diff(topic, request)
        from_seq = page.next_from_seq
        for slot in page.records:
            if slot.record.tag == ANSWER_TAG:
                answer = _answer(slot.record.data)
                if answer is not None and answer.id == command.id:
                    return answer
    raise PartSilent(
        f"{part} has not answered for {format_ms(ANSWER_MS)}: see GET /v0/parts whether it runs"
    )


def _answer(data: bytes) -> PartAnswer | None:
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None
