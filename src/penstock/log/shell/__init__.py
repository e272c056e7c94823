"""The log's touch of the world: threads, and an event loop, that write, read and run partitions."""

from penstock.log.shell.executor import PartitionExecutor, Runner
from penstock.log.shell.groups import WalOptions, run_completions
from penstock.log.shell.local import LocalLog, LogOptions, LogStatus
from penstock.log.shell.loopwal import LoopWal
from penstock.log.shell.reads import ReadOptions, ReadScheduler
from penstock.log.shell.wal import WalScheduler
from penstock.log.shell.workers import FairWorkers, WorkersStatus

__all__ = [
    "FairWorkers",
    "LocalLog",
    "LogOptions",
    "LogStatus",
    "LoopWal",
    "PartitionExecutor",
    "ReadOptions",
    "ReadScheduler",
    "Runner",
    "WalOptions",
    "WalScheduler",
    "WorkersStatus",
    "run_completions",
]
