"""Raft without IO: what one member of a group decides, as events in and duties out.

A member tells its `Core` what happened (a message, a tick, a proposal, a finished sync) and takes
a `Ready` from it: what to write, to send, to apply and to answer, and in which order. There is no
clock, no random source and no task in here; a tick is 100 ms of whatever drives it.

Not in the server yet: a server is one node, whose log is written by `penstock.log` alone.
"""
