"""Durable topics and always-fresh Spark tables that get slower under load, never lossy.

Everything that a program needs is imported from here, and loaded when it is first used:

>>> from penstock import Client, Warehouse, errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock import errors as errors
    from penstock.app.tables import Warehouse as Warehouse
    from penstock.client.aio.client import AsyncClient as AsyncClient
    from penstock.client.aio.runtime import AsyncRuntime as AsyncRuntime
    from penstock.client.aio.watch import AsyncWatch as AsyncWatch
    from penstock.client.aio.work import AsyncJob as AsyncJob
    from penstock.client.aio.work import AsyncWork as AsyncWork
    from penstock.client.aio.writer import AsyncWriter as AsyncWriter
    from penstock.client.blocking.client import Client as Client
    from penstock.client.blocking.runtime import Runtime as Runtime
    from penstock.client.blocking.watch import Watch as Watch
    from penstock.client.blocking.work import Job as Job
    from penstock.client.blocking.work import Work as Work
    from penstock.client.blocking.writer import Writer as Writer
    from penstock.client.retry import RetryPolicy as RetryPolicy
    from penstock.client.runtime.transaction import Transaction as Transaction
    from penstock.client.settings import ClientSettings as ClientSettings
    from penstock.client.settings import CommitBackpressure as CommitBackpressure
    from penstock.ingest.device import Device as Device
    from penstock.protocol.answers import StoredRecord as StoredRecord
    from penstock.protocol.answers import Written as Written
    from penstock.protocol.commits import Commit as Commit
    from penstock.protocol.commits import CommitRead as CommitRead
    from penstock.protocol.commits import CommitWrite as CommitWrite
    from penstock.protocol.config import TopicConfig as TopicConfig
    from penstock.protocol.events import CaughtUp as CaughtUp
    from penstock.protocol.events import Records as Records
    from penstock.protocol.events import Tombstone as Tombstone
    from penstock.protocol.events import TopicDeleted as TopicDeleted
    from penstock.protocol.requests import Record as Record
    from penstock.spark.pipeline.definition import Pipeline as Pipeline

__version__ = "0.1.0.dev0"

# Importing Client must not load Spark, and `penstock --help` must not load the client: so names are
# found by this table when they are first asked for. A test compares it with the imports above.
_HOMES: Final = {
    "AsyncClient": "penstock.client.aio.client",
    "AsyncJob": "penstock.client.aio.work",
    "AsyncRuntime": "penstock.client.aio.runtime",
    "AsyncWatch": "penstock.client.aio.watch",
    "AsyncWork": "penstock.client.aio.work",
    "AsyncWriter": "penstock.client.aio.writer",
    "CaughtUp": "penstock.protocol.events",
    "Client": "penstock.client.blocking.client",
    "ClientSettings": "penstock.client.settings",
    "Commit": "penstock.protocol.commits",
    "CommitBackpressure": "penstock.client.settings",
    "CommitRead": "penstock.protocol.commits",
    "CommitWrite": "penstock.protocol.commits",
    "Device": "penstock.ingest.device",
    "Job": "penstock.client.blocking.work",
    "Pipeline": "penstock.spark.pipeline.definition",
    "Record": "penstock.protocol.requests",
    "Records": "penstock.protocol.events",
    "RetryPolicy": "penstock.client.retry",
    "Runtime": "penstock.client.blocking.runtime",
    "StoredRecord": "penstock.protocol.answers",
    "Tombstone": "penstock.protocol.events",
    "TopicConfig": "penstock.protocol.config",
    "TopicDeleted": "penstock.protocol.events",
    "Transaction": "penstock.client.runtime.transaction",
    "Warehouse": "penstock.app.tables",
    "Watch": "penstock.client.blocking.watch",
    "Work": "penstock.client.blocking.work",
    "Writer": "penstock.client.blocking.writer",
    "Written": "penstock.protocol.answers",
    "errors": "penstock.errors",
}

__all__ = [  # noqa: PLE0604
    *_HOMES,
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = import_module(home)
    found = module if name == "errors" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
