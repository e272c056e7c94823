"""Durable topics and always-fresh Spark tables that get slower under load, never lossy."""

__version__ = "0.1.0.dev0"
