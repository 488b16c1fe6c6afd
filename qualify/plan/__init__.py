"""From a matrix to cases: expand, select, refuse with reasons, give stable ids. No device, no torch."""
