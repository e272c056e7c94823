"""Refreshes whose cost follows the change: what changed, the delta query, and its application."""
