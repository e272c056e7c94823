"""Raft: a core without IO that decides for one member of a group, and what drives it.

`Core` is told what happened and owes a `Ready`; `Group` does what it owes on the loop, and
`ReplicatedJournal` holds the groups of a node.
"""
