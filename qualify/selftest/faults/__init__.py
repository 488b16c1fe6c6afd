"""Planted faults by class. Each module holds wrong steps of the simulated kernel and a literal tuple of faults."""
