"""The Python client: topics, queues, routers and live watches, for asyncio and for threads.

`AsyncClient` and `Client` have the same methods. Records are plain Python objects; what comes back
is typed; errors say by their group what to do next.
"""

from penstock.client.aio.client import AsyncClient
from penstock.client.aio.runtime import AsyncHandle, AsyncRuntime
from penstock.client.aio.watch import AsyncWatch
from penstock.client.aio.work import AsyncJob, AsyncWork
from penstock.client.aio.writer import AsyncWriter
from penstock.client.blocking.client import Client
from penstock.client.blocking.runtime import Handle, Runtime
from penstock.client.blocking.watch import Watch
from penstock.client.blocking.work import Job, Work
from penstock.client.blocking.writer import Writer
from penstock.client.calls import AUTO_KEY
from penstock.client.errors import LeaseLost, OutcomeUnknown
from penstock.client.records import Record
from penstock.client.retry import RetryPolicy
from penstock.client.runtime.errors import (
    BacklogFull,
    CommitConvergenceError,
    HandlerFailed,
    OriginFailed,
)
from penstock.client.runtime.events import Committed, Event
from penstock.client.runtime.policy import CommitBackpressure, RuntimeLimits
from penstock.client.runtime.status import RuntimeStatus
from penstock.client.runtime.telemetry import CommitReport, Failure
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import DEFAULT_URL, ClientSettings
from penstock.client.watching import (
    CaughtUp,
    LeftOut,
    Position,
    Records,
    Tombstone,
    TopicDeleted,
    WatchEvent,
)
from penstock.protocol.answers import (
    ClaimedJob,
    Claims,
    Diff,
    StoredRecord,
    TopicRow,
    TopicState,
    Written,
)
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import CallError

__all__ = [
    "AUTO_KEY",
    "DEFAULT_URL",
    "AsyncClient",
    "AsyncHandle",
    "AsyncJob",
    "AsyncRuntime",
    "AsyncWatch",
    "AsyncWork",
    "AsyncWriter",
    "BacklogFull",
    "CallError",
    "CaughtUp",
    "ClaimedJob",
    "Claims",
    "Client",
    "ClientSettings",
    "CommitBackpressure",
    "CommitConvergenceError",
    "CommitReport",
    "Committed",
    "Diff",
    "Event",
    "Failure",
    "Handle",
    "HandlerFailed",
    "Job",
    "LeaseLost",
    "LeftOut",
    "OriginFailed",
    "OutcomeUnknown",
    "Position",
    "Record",
    "Records",
    "RetryPolicy",
    "Runtime",
    "RuntimeLimits",
    "RuntimeStatus",
    "StoredRecord",
    "Tombstone",
    "TopicConfig",
    "TopicDeleted",
    "TopicRow",
    "TopicState",
    "Transaction",
    "Watch",
    "WatchEvent",
    "Work",
    "Writer",
    "Written",
]
