"""Refresh one unit: claim its job, read its inputs, run the engine, commit all or nothing."""
