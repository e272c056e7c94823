"""Flow as text: scripts beside this file, rewritten with PENSTOCK_REWRITE=1."""

from __future__ import annotations

from pathlib import Path

from penstock.flow.fairqueue import FairQueue
from penstock.testing import Command, run_script

SCRIPTS = Path(__file__).parent / "flow"


class FairQueueScript:
    """The verbs of fairqueue.txt."""

    def __init__(self) -> None:
        self.queue: FairQueue[str] = FairQueue((1, 2, 4))

    def __call__(self, command: Command) -> str:
        return str(getattr(self, f"do_{command.verb}")(command))

    def do_mark(self, command: Command) -> str:
        marked = self.queue.mark(command.words[0], command.number("band"), command.number("at"))
        return "marked" if marked else "waiting already"

    def do_pop(self, _: Command) -> str:
        return self.queue.pop() or "nothing is ready"

    def do_done(self, command: Command) -> str:
        again = self.queue.done(command.words[0], command.number("at"))
        return "waits again" if again else "done"

    def do_pause(self, command: Command) -> str:
        self.queue.pause(int(command.words[0]))
        return "paused"

    def do_release(self, command: Command) -> str:
        self.queue.release(int(command.words[0]))
        return "released"

    def do_fill(self, command: Command) -> str:
        for number in range(int(command.words[0])):
            for band in range(3):
                self.queue.mark(f"{band}-{number}", band, command.number("at"))
        return f"{len(self.queue)} wait"

    def do_turns(self, command: Command) -> str:
        return " ".join((self.queue.pop() or "?")[0] for _ in range(int(command.words[0])))

    def do_bands(self, _: Command) -> str:
        return "\n".join(
            f"band {number}: weight {band.weight}, {band.depth} waiting"
            + (f" since {band.oldest_ms}" if band.depth else "")
            + (", paused" if band.paused else "")
            for number, band in enumerate(self.queue.bands())
        )


def test_the_fair_queue_answers_as_its_script_says() -> None:
    assert run_script(SCRIPTS / "fairqueue.txt", FairQueueScript()) == 5
