"""Runs a partition's work one piece at a time, on whatever thread the runner brings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from penstock.kernel.errors import Unknown
from penstock.log.executor import (
    ExecutorCore,
    ExecutorLimits,
    PartitionFailed,
    Phase,
    Status,
    Turn,
    Work,
)
from penstock.log.solo import StateOwner
from penstock.log.store import Bounds, HardState

_LOGGER: Final = logging.getLogger("penstock.log")
_TURNS_MAX: Final = 32

RunSoon = Callable[[Callable[[], None]], None]
OnRestored = Callable[[tuple[Bounds, HardState] | Exception], None]
Restore = Callable[[OnRestored], None]


class PartitionExecutor:
    """The serial owner of one partition: restores, serves, drains on stop.

    `run_soon` brings a thread: an event loop's call_soon_threadsafe, or a `Runner`. Never two at a
    time run work of this partition, and after a number of turns the next partition has its go.
    `restore` is asked once to find where the log stands and answers from any thread.
    """

    def __init__(
        self,
        partition: int,
        owner: StateOwner,
        *,
        restore: Restore,
        run_soon: RunSoon,
        limits: ExecutorLimits | None = None,
    ) -> None:
        self._core = ExecutorCore(partition, limits)
        self._owner = owner
        self._restore = restore
        self._run_soon = run_soon
        self._lock = threading.Lock()
        self._scheduled = False
        self._served = 0
        self._restored: tuple[Bounds, HardState] | None = None
        self._on_stopped: list[Callable[[], None]] = []
        self._on_settled: list[Callable[[], None]] = []
        self._state = owner.state()

    def start(self) -> None:
        """Begin to restore; client work is taken when that is done."""
        with self._lock:
            if self._core.phase is not Phase.NEW:
                return
            self._core.phase = Phase.RESTORING
        self._restore(self._take_restored)

    def submit(self, kind: Work, item: Any) -> None:
        """Put work in line from any thread, or raise at once and change nothing."""
        with self._lock:
            self._core.submit(kind, item)
            schedule, self._scheduled = not self._scheduled, True
        if schedule:
            self._run_soon(self._run)

    def stop(self, on_stopped: Callable[[], None] = lambda: None) -> None:
        """Refuse new work, do what was taken, answer every waiter, then call back."""
        with self._lock:
            over = self._core.phase in (Phase.STOPPED, Phase.FAILED)
            if not over:
                self._on_stopped.append(on_stopped)
                if self._core.phase is not Phase.STOPPING:
                    self._core.phase = Phase.STOPPING
            schedule, self._scheduled = not self._scheduled, True
        if over:
            on_stopped()
        if schedule:
            self._run_soon(self._run)

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call when the restore is over: the partition serves, or says why it does not."""
        with self._lock:
            later = self._core.phase in (Phase.NEW, Phase.RESTORING)
            if later:
                self._on_settled.append(call)
        if not later:
            call()

    @property
    def status(self) -> Status:
        """The published snapshot; never waits for work in line."""
        core = self._core
        return Status(
            core.partition, core.phase, core.reason, core.depths(), self._served, self._state
        )

    def _take_restored(self, found: tuple[Bounds, HardState] | Exception) -> None:
        """Called by `restore`, from any thread; the owner hears of it in its own turn."""
        with self._lock:
            if isinstance(found, Exception):
                self._core.phase, self._core.reason = Phase.FAILED, f"restore failed: {found}"
            else:
                self._restored = found
            schedule, self._scheduled = not self._scheduled, True
        if schedule:
            self._run_soon(self._run)

    def _run(self) -> None:
        if self._restored is not None:
            self._begin_serving()
        for _ in range(_TURNS_MAX):
            with self._lock:
                turn = None if self._core.phase is Phase.FAILED else self._core.next_turn()
            if turn is None or not self._step(turn):
                break
            if not self._core.waiting:
                break
        self._state = self._owner.state()
        self._end_round()

    def _step(self, turn: Turn) -> bool:
        self._served += len(turn.items)
        try:
            self._owner.step(turn.kind, turn.items)
        except Exception as error:
            self._fail(error)
            unknown = Unknown(f"the partition stopped in the middle of this: {error}")
            self._owner.refuse(turn.kind, turn.items, unknown)
            return False
        return True

    def _begin_serving(self) -> None:
        with self._lock:
            found, self._restored = self._restored, None
            wanted = self._core.phase is Phase.RESTORING
        if found is None or not wanted:
            return
        try:
            self._owner.restored(*found)
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            if self._core.phase is Phase.RESTORING:
                self._core.phase = Phase.SERVING

    def _fail(self, error: Exception) -> None:
        """The owner's state can no longer be trusted: stop here and say why."""
        _LOGGER.error("partition %d stops: %s", self._core.partition, error, exc_info=error)
        with self._lock:
            self._core.phase, self._core.reason = Phase.FAILED, str(error) or repr(error)

    def _end_round(self) -> None:
        """Come again if there is more to do; end the partition if it is over."""
        with self._lock:
            core = self._core
            if core.phase is Phase.SERVING and not core.waiting and not self._on_settled:
                self._scheduled = False
                return
            failed = core.phase is Phase.FAILED
            again = self._scheduled = core.waiting > 0 and not failed
            drained = core.phase is Phase.STOPPING and not again and not self._owner.busy
            if drained:
                core.phase = Phase.STOPPED
            dropped = core.drop_all() if failed else []
            callbacks: list[Callable[[], None]] = []
            if core.phase is not Phase.RESTORING:
                callbacks, self._on_settled = self._on_settled, callbacks
            if failed or drained:
                callbacks, self._on_stopped = callbacks + self._on_stopped, []
        if again:
            self._run_soon(self._run)
        for kind, items in dropped:
            self._owner.refuse(
                kind, items, PartitionFailed(f"partition is out of service: {core.reason}")
            )
        for callback in callbacks:
            callback()


class Runner:
    """Brings threads to executors where there is no event loop.

    A call runs at once on the thread that asks for it, which saves two switches a write. What
    that call asks for in turn goes to the runner's own thread, so that nobody who submits a
    little is kept to do the work of all.
    """

    def __init__(self, name: str) -> None:
        self._inside = threading.local()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run_soon(self, call: Callable[[], None]) -> None:
        """Run a call here and now, or soon on the runner's thread."""
        if getattr(self._inside, "yes", False):
            self._calls.put(call)
        else:
            self._run(call)

    def stop(self) -> None:
        """Run everything given so far and end."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._run(call)

    def _run(self, call: Callable[[], None]) -> None:
        self._inside.yes = True
        try:
            call()
        except Exception:
            _LOGGER.exception("a call of an executor raised")
        finally:
            self._inside.yes = False
