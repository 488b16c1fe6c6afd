"""What Nsight Compute says of a stored case: a script of its call alone, run under the profiler."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from qualify.errors import UsageError
from qualify.facts.counters import CaseCounters
from qualify.facts.devices import HOST
from qualify.facts.outcome import Timing, evidence_of
from qualify.fleet.repro import Wanted, reproduce
from qualify.run.measure.nsight import find_ncu, profile
from qualify.store.store import Store


def profile_case(store: Store, wanted: Wanted, say: Callable[[str], None]) -> CaseCounters:
    """The counters of the case's attention kernels, beside what its run measured.

    Raises:
        UsageError: the case ran on a CPU, or no script can call its kernel alone.
        DeviceError: no ncu, no permission, or no device.
    """
    if wanted.run.device == HOST:
        raise UsageError(
            f"{wanted.case.id} ran on a CPU in run {wanted.run.id}, and Nsight Compute reads counters of NVIDIA GPUs. "
            "Name a run on a GPU: --run RUN"
        )
    ncu = find_ncu()
    made = reproduce(wanted, shrink=False, say=say)
    if not made.standalone:
        raise UsageError(
            f"no script can call {wanted.case.kernel} alone for {wanted.case.id}, so ncu has nothing to run"
        )
    with tempfile.TemporaryDirectory(prefix="qualify-profile-") as folder:
        script = Path(folder) / "call.py"
        script.write_text(made.script)
        kernels = profile(ncu, wanted.python or sys.executable, script, limit_s=wanted.policy.compile_timeout_s)
    timing = _timing(store, wanted)
    return CaseCounters(
        case=wanted.case.id,
        run=wanted.run.id,
        kernels=kernels,
        compulsory_bytes=timing.compulsory_bytes if timing else None,
        latency_us=timing.latency_us if timing else None,
        copy_bytes_per_s=wanted.run.ceilings.copy_bytes_per_s if wanted.run.ceilings else None,
    )


def _timing(store: Store, wanted: Wanted) -> Timing | None:
    _, record = store.find_case(wanted.case.id, wanted.run.id)
    evidence = evidence_of(record.outcome)
    return evidence.timing if evidence else None
