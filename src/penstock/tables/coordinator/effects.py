"""Carries out those effects of the core that concern catalog rows or permits."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.tables import rows
from penstock.tables.coordinator.batch import LeasedBatch
from penstock.tables.coordinator.permits import PermitPool
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    CloseJob,
    Effect,
    Enqueue,
    Event,
    RecordSkip,
    ReleaseToken,
    SetStatus,
    TokenLost,
    TokenWon,
    WouldDispatch,
)


class EffectWriter:
    """Writes effects in the current batch. `query_of` returns the query of a table."""

    def __init__(
        self, batch: LeasedBatch, permits: PermitPool, query_of: Callable[[str], str]
    ) -> None:
        self._batch, self._permits, self._query_of = batch, permits, query_of

    def write(self, effect: Effect, now_ms: int) -> list[Event]:
        """Carry out one effect; returns the resulting events for the core."""
        run = self._batch.run
        match effect:
            case Enqueue(job):
                run(rows.INSERT_JOB, *rows.job_row(job))
            case CloseJob(job):
                self._batch.close_job(job)
            case RecordSkip(key, members, reason, text):
                run(rows.INSERT_SKIP, now_ms, key, json.dumps(members), reason.value, text)
            case SetStatus(table, status, detail):
                query = self._query_of(table)
                run(rows.SET_STATUS_OF_QUERY, status.value, detail, table, query)
            case AskToken():
                self._batch.open()  # a permit and its job belong in one transaction
                return [TokenWon() if self._permits.ask(now_ms) else TokenLost()]
            case ReleaseToken():
                self._batch.open()
                self._permits.give_back()
            case AnswerRequest(request_id, ok, detail):
                run(rows.ANSWER_REQUEST, now_ms, int(ok), detail, request_id)
            case WouldDispatch(job, alongside):
                values = (job.job_id, job.unit_key, json.dumps(alongside), now_ms)
                run(rows.INSERT_WOULD_DISPATCH, *values)
        return []
