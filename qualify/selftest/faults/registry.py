"""Every planted fault, class by class."""

from __future__ import annotations

from qualify.selftest.faults import (
    addresses,
    caches,
    corners,
    fp8_cache,
    heads,
    images,
    latent,
    limits,
    long_context,
    masks,
    merging,
    packing,
    paged_queries,
    parameters,
    paths,
    plans,
    reading,
    rounding,
    softmax,
    strides,
    surroundings,
    variation,
)
from qualify.selftest.specimen import Fault

FAULTS: tuple[Fault, ...] = (
    *masks.FAULTS,
    *packing.FAULTS,
    *images.FAULTS,
    *reading.FAULTS,
    *caches.FAULTS,
    *paged_queries.FAULTS,
    *merging.FAULTS,
    *heads.FAULTS,
    *parameters.FAULTS,
    *rounding.FAULTS,
    *softmax.FAULTS,
    *fp8_cache.FAULTS,
    *latent.FAULTS,
    *strides.FAULTS,
    *plans.FAULTS,
    *variation.FAULTS,
    *addresses.FAULTS,
    *limits.FAULTS,
    *long_context.FAULTS,
    *surroundings.FAULTS,
    *corners.FAULTS,
    *paths.FAULTS,
)
"""All planted faults. Class N (performance) and hangs have none: a stored baseline finds a slow kernel, and the
watchdog of a real run finds a hang. Both have tests of their own."""
