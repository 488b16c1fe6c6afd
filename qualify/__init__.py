"""qualify: which attention kernel ran, was it right, and was it as fast as before."""

__version__ = "0.2.0"
