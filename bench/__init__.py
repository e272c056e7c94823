"""Benchmarks: each prints its numbers beside a peer or a limit measured in the same run."""
