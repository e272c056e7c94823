"""Committed writes that converge or fail loudly: a local replica, handlers, ordered retries.

`RuntimeCore` decides and does no IO; `RuntimeDriver` carries out its effects in one loop. The
public interfaces are `client.aio.runtime` and, generated from it, `client.blocking.runtime`.
"""
