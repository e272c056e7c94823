"""The base of every other package: errors, clock, units. Standard library only."""
