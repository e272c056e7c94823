"""The network edge: frames of devices, reassembled, appended to a durable topic, acknowledged.

`accept`, `reassemble`, `frames` and `windows` are cores: they never wait and never touch a socket.
`edge` runs them; `device` is the other end of the connection.
"""
