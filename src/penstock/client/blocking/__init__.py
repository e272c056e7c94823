# Generated from ../aio/__init__.py by tools/unasync.py: edit that, then `make generate`.
"""The client for threads and scripts: no event loop is needed."""
