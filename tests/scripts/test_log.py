"""The partition executor as text: scripts beside this file, rewritten with PENSTOCK_REWRITE=1."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock.kernel.errors import Corrupt, PenstockError
from penstock.log.executor import PartitionExecutor, WorkKind
from penstock.testing import Command, run_script

SCRIPTS = Path(__file__).parent / "log"
US = 1_000


class ExecutorScript:
    """The verbs of executor.txt. Time passes only while work runs, and by `rest`."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.now_ns = 0
        self.said: list[str] = []
        self.executor = PartitionExecutor(
            7, call_soon=self.soon.append, now_ns=lambda: self.now_ns, client_max=4
        )

    def __call__(self, command: Command) -> str:
        answer = getattr(self, f"do_{command.verb}")(command)
        said, self.said = self.said, []
        return "\n".join([*said, *([answer] if answer else [])]) or "-"

    def do_start(self, _: Command) -> str:
        self.executor.start()
        return self.executor.phase.value

    def do_restored(self, _: Command) -> str:
        self.executor.restored()
        return self.executor.phase.value

    def do_fail(self, command: Command) -> str:
        offset = command.number("offset")
        text = f"{command.words[0]} at offset {offset} is damaged"
        self.executor.fail(Corrupt(text, file=command.words[0], offset=offset))
        return self.executor.phase.value

    def do_stop(self, _: Command) -> str:
        self.executor.stop()
        return self.executor.phase.value

    def do_submit(self, command: Command) -> str:
        """`submit CLASS NAME [took=µs] [count=N] [raises=1]`"""
        kind, name = WorkKind[command.words[0].upper()], command.words[1]
        for number in range(command.number("count", 1)):
            label = f"{name}{number}" if "count" in command.options else name
            refused = self._submit(kind, label, command)
            if refused:
                return refused
        return "" if self.said else "waits"

    def _submit(self, kind: WorkKind, name: str, command: Command) -> str:
        took_ns, raises = command.number("took", 0) * US, command.number("raises", 0)

        def run() -> None:
            self.now_ns += took_ns
            if raises:
                raise ZeroDivisionError(f"{name} went wrong")
            self.said.append(f"{name} runs")

        try:
            self.executor.submit(kind, run, lambda error: self.said.append(f"{name} dropped"))
        except PenstockError as error:
            return f"{error.code}: {error.message}"
        return ""

    def do_turn(self, _: Command) -> str:
        """One turn of the loop."""
        for call in [self.soon.popleft() for _ in range(len(self.soon))]:
            call()
        return "" if self.said else "nothing to do"

    def do_order(self, _: Command) -> str:
        """The first letters of what runs until nothing waits."""
        while self.soon:
            self.soon.popleft()()
        said, self.said = self.said, []
        return "".join(line[0] for line in said)

    def do_rest(self, command: Command) -> str:
        self.now_ns += int(command.words[0]) * US
        return ""

    def do_status(self, _: Command) -> str:
        status = self.executor.status
        queued = " ".join(f"{name}={count}" for name, count in status.queued.items() if count)
        where = f" in {status.file} at {status.offset}" if status.file else ""
        return f"{status.phase.value}{where}, served {status.served}, {queued or 'nothing waits'}"


def test_the_executor_answers_as_its_script_says() -> None:
    assert run_script(SCRIPTS / "executor.txt", ExecutorScript()) == 8
