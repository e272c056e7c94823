"""Runtimes on a connection: for asyncio, and for threads."""
