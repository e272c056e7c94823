"""Committed writes that converge or fail loudly: a local replica, handlers, retries in their place.

`RuntimeCore` decides and does no IO; `shell` has the faces for asyncio and for threads.
"""
