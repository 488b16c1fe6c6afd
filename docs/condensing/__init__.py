"""Makes the small files of docs/evidence from whole evidence: one module for each kind of file."""
