"""The topics of one partition as pure state: what may happen to them and what then is true.

Nothing here does IO or tells time. A command is decided against the state and becomes an entry;
applying the same entries in the same order gives the same state, before a crash and after it.
"""
