"""Nodes of a cluster: who they are, how they talk, and what passes between them.

`frames`, `handshake` and `outbox` decide without touching a socket; `links` drives them.
"""
