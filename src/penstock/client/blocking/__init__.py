"""The client for threads and scripts: it blocks, and needs no event loop."""
