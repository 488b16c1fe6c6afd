"""One module for each library; every adapter fulfils the contract in ``interface``."""
