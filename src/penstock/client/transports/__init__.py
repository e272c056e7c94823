"""Connections to a server: `aio` on asyncio, `blocking` on plain sockets, with the same methods."""
