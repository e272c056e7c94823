"""The transport: HTTP/1.1, HTTP/2 and WebSocket on one port of an asyncio loop.

`Listener` binds the port and hands every complete request to the application.
"""

from __future__ import annotations

from penstock.server.http.listener import Listener

__all__ = ["Listener"]
