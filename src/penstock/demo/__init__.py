"""The demonstration: `penstock up`, a fleet of meters, and a proof of what the fleet was told."""
