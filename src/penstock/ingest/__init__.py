"""The way of device messages into a durable topic: frames, reassembly, acknowledgement, windows.

The cores here never wait and never touch a socket; `penstock.ingest.shell` does.
"""
