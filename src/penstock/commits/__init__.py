"""Conditional atomic changes of JSON documents: what a commit is, and when it may take effect.

Nothing here does IO. The server decides with it; a client that runs ahead of the server applies the
same rules to its own copy.
"""
