"""Connections to a server, on asyncio and on plain sockets."""
