"""Signed evidence: what is signed, by whom, and what differs from it."""
