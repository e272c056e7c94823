"""Durable topics, queues, spaces and routers of one node.

`core` decides commands and holds the resulting state, without IO. `engine` runs the cores on an
event loop: commands in, answers out. `persist` is everything on disk besides the log: snapshots,
cold records, recovery, backups.
"""
