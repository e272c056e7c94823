"""The coordinator of a warehouse: one lease holder that dispatches units to worker processes."""
