"""The Python client: topics, queues, routers and live watches, for asyncio and for threads.

`AsyncClient` and `Client` have the same methods. Records are plain Python objects; results are
typed; an error's group says what to do next.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient as AsyncClient
    from penstock.client.aio.runtime import AsyncHandle as AsyncHandle
    from penstock.client.aio.runtime import AsyncRuntime as AsyncRuntime
    from penstock.client.aio.watch import AsyncWatch as AsyncWatch
    from penstock.client.aio.work import AsyncJob as AsyncJob
    from penstock.client.aio.work import AsyncWork as AsyncWork
    from penstock.client.aio.writer import AsyncWriter as AsyncWriter
    from penstock.client.blocking.client import Client as Client
    from penstock.client.blocking.runtime import Handle as Handle
    from penstock.client.blocking.runtime import Runtime as Runtime
    from penstock.client.blocking.watch import Watch as Watch
    from penstock.client.blocking.work import Job as Job
    from penstock.client.blocking.work import Work as Work
    from penstock.client.blocking.writer import Writer as Writer
    from penstock.client.calls import AUTO_KEY as AUTO_KEY
    from penstock.client.errors import BacklogFull as BacklogFull
    from penstock.client.errors import CommitConvergenceError as CommitConvergenceError
    from penstock.client.errors import HandlerFailed as HandlerFailed
    from penstock.client.errors import LeaseLost as LeaseLost
    from penstock.client.errors import OriginFailed as OriginFailed
    from penstock.client.retry import RetryPolicy as RetryPolicy
    from penstock.client.runtime.effects import CommitReport as CommitReport
    from penstock.client.runtime.effects import RuntimeFailure as RuntimeFailure
    from penstock.client.runtime.events import Committed as Committed
    from penstock.client.runtime.events import Event as Event
    from penstock.client.runtime.status import RuntimeStatus as RuntimeStatus
    from penstock.client.runtime.transaction import Transaction as Transaction
    from penstock.client.settings import DEFAULT_URL as DEFAULT_URL
    from penstock.client.settings import ClientSettings as ClientSettings
    from penstock.client.settings import CommitBackpressure as CommitBackpressure
    from penstock.client.settings import RuntimeLimits as RuntimeLimits
    from penstock.client.watching import Position as Position
    from penstock.protocol.answers import ClaimedJob as ClaimedJob
    from penstock.protocol.answers import Claims as Claims
    from penstock.protocol.answers import Diff as Diff
    from penstock.protocol.answers import StoredRecord as StoredRecord
    from penstock.protocol.answers import TopicRow as TopicRow
    from penstock.protocol.answers import TopicState as TopicState
    from penstock.protocol.answers import Written as Written
    from penstock.protocol.config import TopicConfig as TopicConfig
    from penstock.protocol.errors import CallError as CallError
    from penstock.protocol.errors import OutcomeUnknown as OutcomeUnknown
    from penstock.protocol.events import CaughtUp as CaughtUp
    from penstock.protocol.events import LeftOut as LeftOut
    from penstock.protocol.events import Records as Records
    from penstock.protocol.events import Tombstone as Tombstone
    from penstock.protocol.events import TopicDeleted as TopicDeleted
    from penstock.protocol.events import WatchEvent as WatchEvent
    from penstock.protocol.requests import Record as Record

# Names are loaded on first access: a Spark worker, or a command that makes one call, needs neither
# asyncio nor the runtime. A test compares this table with the imports above.
_HOMES: Final = {
    "AUTO_KEY": "penstock.client.calls",
    "AsyncClient": "penstock.client.aio.client",
    "AsyncHandle": "penstock.client.aio.runtime",
    "AsyncJob": "penstock.client.aio.work",
    "AsyncRuntime": "penstock.client.aio.runtime",
    "AsyncWatch": "penstock.client.aio.watch",
    "AsyncWork": "penstock.client.aio.work",
    "AsyncWriter": "penstock.client.aio.writer",
    "BacklogFull": "penstock.client.errors",
    "CallError": "penstock.protocol.errors",
    "CaughtUp": "penstock.protocol.events",
    "ClaimedJob": "penstock.protocol.answers",
    "Claims": "penstock.protocol.answers",
    "Client": "penstock.client.blocking.client",
    "ClientSettings": "penstock.client.settings",
    "CommitBackpressure": "penstock.client.settings",
    "CommitConvergenceError": "penstock.client.errors",
    "CommitReport": "penstock.client.runtime.effects",
    "Committed": "penstock.client.runtime.events",
    "DEFAULT_URL": "penstock.client.settings",
    "Diff": "penstock.protocol.answers",
    "Event": "penstock.client.runtime.events",
    "RuntimeFailure": "penstock.client.runtime.effects",
    "Handle": "penstock.client.blocking.runtime",
    "HandlerFailed": "penstock.client.errors",
    "Job": "penstock.client.blocking.work",
    "LeaseLost": "penstock.client.errors",
    "LeftOut": "penstock.protocol.events",
    "OriginFailed": "penstock.client.errors",
    "OutcomeUnknown": "penstock.protocol.errors",
    "Position": "penstock.client.watching",
    "Record": "penstock.protocol.requests",
    "Records": "penstock.protocol.events",
    "RetryPolicy": "penstock.client.retry",
    "Runtime": "penstock.client.blocking.runtime",
    "RuntimeLimits": "penstock.client.settings",
    "RuntimeStatus": "penstock.client.runtime.status",
    "StoredRecord": "penstock.protocol.answers",
    "Tombstone": "penstock.protocol.events",
    "TopicConfig": "penstock.protocol.config",
    "TopicDeleted": "penstock.protocol.events",
    "TopicRow": "penstock.protocol.answers",
    "TopicState": "penstock.protocol.answers",
    "Transaction": "penstock.client.runtime.transaction",
    "Watch": "penstock.client.blocking.watch",
    "WatchEvent": "penstock.protocol.events",
    "Work": "penstock.client.blocking.work",
    "Writer": "penstock.client.blocking.writer",
    "Written": "penstock.protocol.answers",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.client' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
