"""Every planted fault, class by class."""

from __future__ import annotations

from qualify.selftest.faults import (
    addresses,
    fp8_cache,
    heads,
    latent,
    limits,
    masks,
    merging,
    numerics,
    parameters,
    paths,
    reading,
    state,
    strides,
)
from qualify.selftest.specimen import Fault

FAULTS: tuple[Fault, ...] = (
    *masks.FAULTS,
    *reading.FAULTS,
    *merging.FAULTS,
    *heads.FAULTS,
    *parameters.FAULTS,
    *numerics.FAULTS,
    *fp8_cache.FAULTS,
    *latent.FAULTS,
    *strides.FAULTS,
    *state.FAULTS,
    *addresses.FAULTS,
    *limits.FAULTS,
    *paths.FAULTS,
)
"""Class N (performance) and hangs have no fault here: a slow kernel is found by its stored baseline, a hang by the
watchdog of a real run, and both have tests of their own."""
