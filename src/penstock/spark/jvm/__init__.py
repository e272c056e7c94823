"""Spark's JVM on this machine: find Java, make the command line, start and stop the process."""
