"""The demonstration: `penstock up`, a fleet of meters, and a proof of what was acknowledged."""
