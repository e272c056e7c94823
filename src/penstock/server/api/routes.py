"""The route table. Handlers register themselves in it, with their answer, scope and errors.

It is complete once `penstock.server.api.app`, which imports every handler, is imported.
"""

from __future__ import annotations

from typing import Final

from penstock.protocol.limits import LIMITS, PAGE_SIZE, PAGE_SIZE_MAX
from penstock.protocol.routes import Param, RouteTable
from penstock.protocol.values import ROUTER_NAME, TOPIC_NAME, U64_MAX, Schema

ROUTES: Final = RouteTable()
"""Every route of the server."""

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
KEY: Final[Schema] = {"type": "string", "maxLength": LIMITS.key_bytes_max}
PAGES: Final = (
    Param("prefix", TEXT, "Only names that begin like this."),
    Param("page_size", NUMBER, f"Rows of a page, 1 to {PAGE_SIZE_MAX}; {PAGE_SIZE} if not said."),
    Param("cursor", TEXT, "`next_cursor` of the page before."),
)
IDEMPOTENCY_KEY: Final = Param(
    "Idempotency-Key",
    KEY,
    "For every write that names no `idempotency_key` itself: the same again lands once.",
)

NAME_SHAPES: Final[dict[str, Schema]] = {
    "topic": {"type": "string", "pattern": TOPIC_NAME},
    "router": {"type": "string", "pattern": ROUTER_NAME},
    "entity": {"type": "string", "pattern": TOPIC_NAME},
    "table": {
        "type": "string",
        "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$",
        "maxLength": 120,
    },
    "source": {"type": "string", "pattern": TOPIC_NAME},
    "session": {"type": "string", "pattern": r"^wid_[A-Za-z0-9_-]{22}$"},
}
"""What the name in a path may refer to."""

_WRITES: Final = "/v0/topics/"


def is_write(method: str, path: str) -> bool:
    """Whether a request appends to one topic.

    Such requests reach the engine in order of arrival, whenever they are answered. Any other
    request begins only when the requests before it are answered, and delays those after it.
    """
    return method == "POST" and path.startswith(_WRITES) and path.find("/", len(_WRITES)) < 0
