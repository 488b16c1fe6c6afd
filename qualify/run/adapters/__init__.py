"""One module per library, behind the contract of ``interface``."""
