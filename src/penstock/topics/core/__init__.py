"""The topics of one partition as pure state: a command is decided and becomes an entry.

Applying the same entries in the same order gives the same state, before a crash and after it.
"""
