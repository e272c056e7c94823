"""Durable topics, queues, spaces and routers of one node.

`core` decides what may happen and what is then true, and imports nothing of the world. `engine`
runs the cores on an event loop: commands in, answers out. `persist` is everything on disk beside
the log: snapshots, cold records, recovery, backups.
"""
