"""Dispatch as text: scripts beside this file, rewritten with PENSTOCK_REWRITE=1."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.events import (
    AnswerRequest,
    Cancel,
    CloseJob,
    DrainChanged,
    Effect,
    GateChanged,
    GraphChanged,
    JobCancelled,
    LocksChanged,
    RecordSkip,
    RefreshRequested,
    ReleaseToken,
    SetStatus,
    Start,
    StatusChanged,
    WorkerDied,
    WouldDispatch,
)
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import Status, TableDefinition
from penstock.testing import Command, run_script
from tests.unit.tables.core.stage import Stage, reads

SCRIPTS = Path(__file__).parent / "tables"


class DispatchScript:
    """The verbs of a script: what the core is told. The answer: what it wants done, in its order.

    `table` collects definitions, `begin` starts a coordinator with them; `graph` tells it of those
    collected since. Permits are won while there are any; jobs run until a verb ends them.
    """

    def __init__(self) -> None:
        self.tables: dict[str, TableDefinition] = {}
        self.locks: set[str] = set()
        self.version = 1
        self.stage = Stage()

    def __call__(self, command: Command) -> str:
        found = getattr(self, f"do_{command.verb}")(command)
        return found if isinstance(found, str) else shown(found)

    def do_table(self, command: Command) -> str:
        name, *sources = command.words
        self.tables[name] = reads(name, *sources, **command.options)
        return "defined"

    def do_drop(self, command: Command) -> str:
        del self.tables[command.words[0]]
        return "dropped"

    def do_begin(self, command: Command) -> list[Effect]:
        options = command.options
        self.stage = Stage(
            *self.tables.values(),
            mode=ParallelMode(options.get("mode", "on")),
            running_max=int(options.get("running", 4)),
            permits=int(options.get("permits", 100)),
        )
        return self.stage.effects

    def do_graph(self, _: Command) -> list[Effect]:
        self.version += 1
        return self.stage.tell(GraphChanged(StreamGraph(self.tables.values()), self.version))

    def do_write(self, command: Command) -> list[Effect]:
        return self.stage.write(command.words[0])

    def do_wait(self, command: Command) -> list[Effect]:
        return self.stage.wait(int(command.words[0]))

    def do_succeed(self, command: Command) -> list[Effect]:
        return self.stage.succeed(*command.words)

    def do_unchanged(self, command: Command) -> list[Effect]:
        return self.stage.succeed(*command.words, changed=False)

    def do_fail(self, command: Command) -> list[Effect]:
        kind = FailureKind(command.options.get("kind", "retryable"))
        return self.stage.fail(command.words[0], kind, command.options.get("member"))

    def do_die(self, command: Command) -> list[Effect]:
        worker = self.stage.running(command.words[0]).worker
        assert worker is not None
        return self.stage.tell(WorkerDied(worker))

    def do_cancelled(self, command: Command) -> list[Effect]:
        return self.stage.tell(JobCancelled(self.stage.running(command.words[0]).job_id))

    def do_refresh(self, command: Command) -> list[Effect]:
        request_id, table = command.words[:2]
        forced = "force" in command.words
        return self.stage.tell(RefreshRequested(request_id, table, forced))

    def do_gate(self, command: Command) -> list[Effect]:
        return self.stage.tell(GateChanged(command.words[0], True))

    def do_ungate(self, command: Command) -> list[Effect]:
        return self.stage.tell(GateChanged(command.words[0], False))

    def do_lock(self, command: Command) -> list[Effect]:
        self.locks.update(command.words)
        return self.stage.tell(LocksChanged(frozenset(self.locks)))

    def do_unlock(self, command: Command) -> list[Effect]:
        self.locks.difference_update(command.words)
        return self.stage.tell(LocksChanged(frozenset(self.locks)))

    def do_status(self, command: Command) -> list[Effect]:
        table, status = command.words
        return self.stage.tell(StatusChanged(table, Status(status)))

    def do_drain(self, _: Command) -> list[Effect]:
        return self.stage.tell(DrainChanged(True))

    def do_undrain(self, _: Command) -> list[Effect]:
        return self.stage.tell(DrainChanged(False))

    def do_permits(self, command: Command) -> str:
        self.stage.permits = int(command.words[0])
        return f"{self.stage.permits} free"

    def do_running(self, _: Command) -> str:
        return " ".join(self.stage.started()) or "nothing runs"

    def do_why(self, command: Command) -> str:
        verdict = self.stage.coordinator.why(command.words[0], self.stage.now_ms)
        return f"{verdict.reason.value}: {verdict.text}"


def shown(effects: list[Effect]) -> str:
    """Effects, one a line; that a job is stored or a permit asked for goes without saying."""
    return "\n".join(line for effect in effects for line in _line(effect)) or "nothing"


def _line(effect: Effect) -> list[str]:
    match effect:
        case Start(job, inline):
            return [f"start {job.unit_key}{' here' if inline else ''}, attempt {job.attempt_no}"]
        case CloseJob(job):
            detail = f": {job.outcome_detail}" if job.outcome_detail else ""
            return [f"close {job.unit_key} {job.status.value}{detail}"]
        case Cancel(job, detail):
            return [f"cancel {job.unit_key}: {detail}"]
        case RecordSkip(key, _, reason, text):
            return [f"skip {key}, {reason.value}: {text}"]
        case SetStatus(table, status, detail):
            return [f"status {table} {status.value}: {detail}"]
        case ReleaseToken():
            return ["give a permit back"]
        case AnswerRequest(request_id, ok, detail):
            return [f"answer {request_id} {'ok' if ok else 'failed'}: {detail}"]
        case WouldDispatch(job, alongside):
            return [f"would start {job.unit_key} beside {', '.join(alongside) or 'nothing'}"]
    return []


@pytest.mark.parametrize("name", ["chain", "failures", "requests", "capacity"])
def test_the_coordinator_wants_what_the_script_says(name: str) -> None:
    assert run_script(SCRIPTS / f"{name}.txt", DispatchScript()) > 2
