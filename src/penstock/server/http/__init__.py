"""An HTTP server of its own: HTTP/1.1, HTTP/2, WebSocket and TLS on one port of an asyncio loop.

It knows nothing of topics. An application is a function that answers an exchange, now or later:

>>> import asyncio
>>> def hello(exchange: Exchange) -> None:
...     exchange.reply(200, b"hello " + exchange.request.path.encode(), content_type=b"text/plain")
>>> async def ask() -> bytes:
...     listener = Listener(hello)
...     reader, writer = await asyncio.open_connection(*await listener.start(port=0))
...     writer.write(b"GET /you HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
...     answer = await reader.read()
...     writer.close()
...     await writer.wait_closed()
...     await listener.drain(1.0)
...     await listener.abort()
...     return answer.rpartition(b"\\r\\n")[2]
>>> asyncio.run(ask())
b'hello /you'
"""

from __future__ import annotations

from penstock.server.http.listener import Listener
from penstock.server.http.message import Answer, Application, Exchange, Request, TransportLimits

__all__ = ["Answer", "Application", "Exchange", "Listener", "Request", "TransportLimits"]
