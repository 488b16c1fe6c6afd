"""Measuring: which kernels a call launches, how long it takes, and what the device reaches at best."""
