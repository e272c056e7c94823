"""The words every other package speaks: errors, clock, units. Standard library only."""
