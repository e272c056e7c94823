"""A WebSocket of the protocol through the stock `websockets` client."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.conformance.wire import DEADLINE_S, Address


class Socket:
    """Commands out, messages in. Use it in a `with`."""

    def __init__(self, address: Address, *, key: str | None = None, **options: Any) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._stack = contextlib.ExitStack()
        opening = connect(
            f"ws://{address.host}:{address.port}/v0/ws",
            additional_headers=headers,
            open_timeout=DEADLINE_S,
            close_timeout=2,
            max_size=None,
            proxy=None,
            **options,
        )
        self.raw: ClientConnection = self._stack.enter_context(opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, op: str, **fields: Any) -> None:
        self.raw.send(json.dumps({"op": op, **fields}))

    def text(self, deadline_s: float = DEADLINE_S) -> str:
        message = self.raw.recv(timeout=deadline_s)
        assert isinstance(message, str), "messages are text frames"
        return message

    def next(self, op: str | None = None, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The next message; it must be of this kind if one is given."""
        message: dict[str, Any] = json.loads(self.text(deadline_s))
        assert op is None or message["op"] == op, message
        return message

    def until(self, op: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The next message of a kind, passing over others."""
        end = time.monotonic() + deadline_s
        while True:
            message = self.next(None, max(0.0, end - time.monotonic()))
            if message["op"] == op:
                return message

    def ask(self, op: str, reply: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its reply, passing over pushed messages."""
        self.send(op, **fields)
        return self.until(reply)

    def records(self, count: int) -> list[dict[str, Any]]:
        """The first `count` records of the record messages to come."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.until("record")["records"]
        return found
