"""Where a kernel lives: in a host process of its own, away from the judge; or, for simulated ones, in this process."""
