"""What of the edge waits and touches the world: sockets, the topic's appender, devices, load."""
