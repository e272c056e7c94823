"""Runs a node's topics: on the event loop, over the log, by the clock."""
