"""Committed writes that converge or fail loudly: a local replica, handlers, retries in their place.

`RuntimeCore` decides and does no IO; `RuntimeDriver` carries out what it wants in one loop. The
faces that programs use are `client.aio.runtime` and, generated from it, `client.blocking.runtime`.
"""
