"""Stream tables in the world: warehouse, coordinator, worker processes."""

from __future__ import annotations
