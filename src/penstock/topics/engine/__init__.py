"""The topics of a node at work: on the event loop, over the log, by the clock."""
