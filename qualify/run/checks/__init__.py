"""One module per check, behind the contract of ``interface``; ``registry`` lists them as they run."""
